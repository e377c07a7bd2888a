"""Channels: destinations of warnings, and the form in which they get them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wslgpud.security.redaction import MaskedError
from wslgpud.words import MAX_CHARACTERS, Fact, MessageLike, Translator
from wslgpud.words.moments import local_time
from wslgpud.words.units import one_line

#: a message in the outbox, see ``alerts.messages``; or as rendered by the dispatcher
Payload = Mapping[str, Any]
#: characters of a reason
_MAX_REASON = 300


class DeliveryError(MaskedError):
    """The channel did not accept the message; it is retried later unless ``permanent``.

    The reason, which may include foreign text of a server or program, goes into log and database.
    """

    def __init__(self, said: MessageLike, *, permanent: bool = False) -> None:
        super().__init__(one_line(said, _MAX_REASON) if isinstance(said, str) else said)
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

    def send(self, message: Payload) -> None:
        """Deliver a message of ``dispatcher.rendered``; DeliveryError: the channel did not accept it."""
        raise NotImplementedError

    def refresh(self, messages: Sequence[Payload]) -> None:
        """Report that these incidents are still open; raises like ``send``."""

    def keep_warm(self, *, needed: bool) -> None:
        """Prepare for a likely message, or stop preparing; called at every tick, must not block."""


def body(message: Payload) -> str:
    """Return the text below the headline of a rendered message, for people."""
    where = ", ".join(filter(None, (message.get("host"), local_time(message.get("at", "")))))
    return "\n\n".join(str(p) for p in (message.get("evidence"), message.get("advice"), where) if p)[:MAX_CHARACTERS]


def shown(facts: Mapping[str, Fact], translator: Translator) -> dict[str, Any]:
    """Return facts for programs: numbers unchanged, texts rendered in a language, on one line."""
    return {k: v if isinstance(v, (int, float)) else one_line(translator.fact(k, v)) for k, v in facts.items()}
