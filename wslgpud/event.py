"""What happened at a moment: a kill, a jump of the clock, the end of an earlier run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from wslgpud.words import Message, Said

#: whose text is the kernel's own line: programs may write into it, so it is never a template
_QUOTED = frozenset({"nvidia_xid", "dxg_error"})


class Event(NamedTuple):
    """Something that happened, as opposed to a level that can be sampled (a kernel line, a clock jump).

    ``text`` is a template whose blanks are ``fields``, or the kernel's own line.
    """

    kind: str
    wall: float
    text: str
    fields: Mapping[str, str | int | float] = MappingProxyType({})

    @property
    def message(self) -> Said:
        """What happened, to be worded where somebody reads it."""
        return self.text if self.kind in _QUOTED else Message(self.text, self.fields)
