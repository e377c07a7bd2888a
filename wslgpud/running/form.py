"""The form of a note, and when one counts.

Anybody may write where notes lie. A note is believed as far as the kernel bears it out: the process that it
names lives, is the one that began then, and has one user, to whom the file belongs; and nobody else can have
written into it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from wslgpud import documents, masking
from wslgpud.documents import Folder
from wslgpud.host import Host
from wslgpud.sources.identity import Identity, identity

Kind = Literal["stress", "guard"]
KINDS: tuple[Kind, ...] = get_args(Kind)

#: The first that exists and can be written to is where a note lies; /tmp is another for each service.
PLACES = ("/run/lock", "/dev/shm")  # noqa: S108 - shared on purpose
_NAME = re.compile(r"wslgpud-running-(stress|guard)-([0-9]{1,10})\.json")
#: entries of a folder that are looked at; PyTorch's data loaders may have thousands of files in /dev/shm
MOST_ENTRIES = 1024
MOST_BYTES, MOST_PEAKS, MOST_PIDS, LONGEST_WORD = 1 << 14, 16, 1024, 200
#: beyond it sums would be nonsense
_MOST_FIGURE = 1 << 62
_WORDS, _OTHERS = ("kind", "what", "who", "phase"), ("peaks", "used", "pids")


def name_of(kind: Kind, pid: int) -> str:
    """Return the name of a process's note."""
    return f"wslgpud-running-{kind}-{pid}.json"


def named(names: Iterable[str]) -> list[str]:
    """Return those that are named like notes."""
    return [name for name in names if _NAME.fullmatch(name)]


@dataclass(frozen=True)
class Noted:
    """A note that the kernel bears out: who left it, and what it says."""

    who: Identity
    document: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """``stress`` or ``guard``."""
        return str(self.document["kind"])


def read(folder: Folder, name: str, host: Host) -> Noted | None:
    """Return a note that counts; None for any other, and for what is no note."""
    match = _NAME.fullmatch(name)
    try:
        with folder.opened(name) as descriptor:
            facts, content = os.fstat(descriptor), os.read(descriptor, MOST_BYTES)
        document = _checked(documents.parsed(content))
        who = None if match is None else identity(host, int(match[2]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    # Nobody but its owner can have written it, and its owner made it here: no link to another of their files.
    own = facts.st_nlink == 1 and not facts.st_mode & 0o022
    if match is None or who is None or not who.alive or not own or who.uids != {facts.st_uid}:
        return None
    if (document["kind"], document["pid"], document["start_ticks"]) != (match[1], who.pid, who.start_ticks):
        return None
    return Noted(who, document)


def _checked(note: dict[str, Any]) -> dict[str, Any]:
    """Return a note with which one can reckon: anybody may write here, also NaN and Infinity.

    Raises:
        ValueError: it holds something else. KeyError, TypeError and AttributeError likewise.
    """
    figures = [value for name, value in note.items() if name not in (*_WORDS, *_OTHERS)]
    peaks, used, pids = note.get("peaks", {}), note.get("used", {}), note.get("pids", [])
    whole = [*peaks.values(), *used.values(), *pids]
    if len(peaks) > MOST_PEAKS or len(pids) > MOST_PIDS or not all(type(value) is int for value in whole):
        raise ValueError("not a note")
    if not all(isinstance(value, int | float) and abs(value) < _MOST_FIGURE for value in figures):
        raise ValueError("not a note")
    return {
        **note,
        "began_mono": note["began_mono"],
        **{word: masking.named(str(note[word]))[:LONGEST_WORD] for word in _WORDS},
    }
