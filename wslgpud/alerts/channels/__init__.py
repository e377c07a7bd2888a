"""Channels: destinations of warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wslgpud.security.redaction import MaskedError
from wslgpud.words import MessageLike
from wslgpud.words.units import one_line

_MAX_CHARACTERS = 300


class DeliveryError(MaskedError):
    """The channel did not accept the message; it is retried later unless ``permanent``.

    The reason, which may include foreign text of a server or program, goes into log and database.
    """

    def __init__(self, said: MessageLike, *, permanent: bool = False) -> None:
        super().__init__(one_line(said, _MAX_CHARACTERS) if isinstance(said, str) else said)
        self.permanent = permanent


class Channel:
    """A destination of warnings; called from its own thread, so it may block.

    ``human``: read by people, so it observes quiet hours and limits, and gets accumulated messages as one. Other
    channels get each message separately.
    """

    name: str
    human: bool
    #: refresh interval of open incidents, which it forgets otherwise (None: not needed)
    refresh_seconds: float | None = None

    def send(self, message: Mapping[str, Any]) -> None:
        """Deliver a message of ``wslgpud.alerts.messages.worded``; DeliveryError: the channel did not accept it."""
        raise NotImplementedError

    def refresh(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Report that these incidents are still open; raises like ``send``."""

    def keep_warm(self, *, needed: bool) -> None:
        """Prepare for a likely message, or stop preparing; called at every tick, must not block."""
