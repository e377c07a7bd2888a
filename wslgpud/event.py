"""What happened at a moment, as opposed to a level that can be sampled."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from wslgpud.words import Message, MessageLike

#: whose text is the kernel's own line: programs may write into it, so it is never a template
_QUOTED = frozenset({"nvidia_xid", "dxg_error", "vmbus_starved"})


class Event(NamedTuple):
    """A kill, a jump of the clock, ...: ``text`` is a template with blanks for ``fields``, or the kernel's line."""

    kind: str
    wall: float
    text: str
    fields: Mapping[str, str | int | float] = MappingProxyType({})

    @property
    def message(self) -> MessageLike:
        """What happened, to be worded where somebody reads it."""
        return self.text if self.kind in _QUOTED else Message(self.text, self.fields)
