"""Channels: where a warning can go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wslgpud.security.redaction import MaskedError
from wslgpud.words import MessageLike
from wslgpud.words.units import one_line

_MOST_CHARACTERS = 300


class DeliveryError(MaskedError):
    """The channel did not take the warning; it is tried again later unless ``permanent``.

    The reason, much of which may be the server's or program's own text, goes to the log and into the database.
    """

    def __init__(self, said: MessageLike, *, permanent: bool = False) -> None:
        super().__init__(one_line(said, _MOST_CHARACTERS) if isinstance(said, str) else said)
        self.permanent = permanent


class Channel:
    """Somewhere a warning can go; called from a thread of its own, so it may take its time.

    ``human``: people read it, so it observes quiet hours and limits, and gets what has piled up as one
    message. The others get each message by itself.
    """

    name: str
    human: bool
    #: it forgets an incident unless it hears of it so often (None: it does not)
    refresh_seconds: float | None = None

    def send(self, message: Mapping[str, Any]) -> None:
        """Hand over a message of ``wslgpud.alerts.messages.worded``; DeliveryError: the channel did not take it."""
        raise NotImplementedError

    def refresh(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Say that these incidents are still open; raises what ``send`` does."""

    def keep_warm(self, *, needed: bool) -> None:
        """Be ready, because something to send is likely, or no longer; at every tick, and at once."""
