"""The format of a note, and when one counts.

Anybody may write to the folder of notes. A note counts only if the kernel confirms it: its process is alive,
has the start time it names and a single user, who owns the file; and nobody else can have written into it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from wslgpud.host import Host
from wslgpud.security import redaction, safe_files
from wslgpud.security.safe_files import Folder
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


class Noted(NamedTuple):
    """A confirmed note: its process and its content."""

    who: Identity
    document: Mapping[str, Any]


def read(folder: Folder, name: str, host: Host) -> Noted | None:
    """Return a note that counts; None for any other and for anything else."""
    match = _NAME.fullmatch(name)
    try:
        with folder.opened(name) as descriptor:
            facts, content = os.fstat(descriptor), os.read(descriptor, MOST_BYTES)
        document = _checked(safe_files.parsed(content))
        claimed = document["kind"], document["pid"], document["start_ticks"]
        who = identity(host, int(match[2])) if match else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    # Nobody but its owner can have written it, and its owner made it here: no link to another of their files.
    own = facts.st_nlink == 1 and not facts.st_mode & 0o022
    if match and who and who.alive and own and who.uids == {facts.st_uid}:
        return Noted(who, document) if claimed == (match[1], who.pid, who.start_ticks) else None
    return None


def _checked(note: dict[str, Any]) -> dict[str, Any]:
    """Return a note with which one can reckon: anybody may write here, also NaN and Infinity. Else raise."""
    figures = [note["began_mono"], *(value for name, value in note.items() if name not in (*_WORDS, *_OTHERS))]
    peaks, used, pids = note.get("peaks", {}), note.get("used", {}), note.get("pids", [])
    whole = all(type(value) is int for value in (*peaks.values(), *used.values(), *pids))
    finite = all(isinstance(value, int | float) and abs(value) < _MOST_FIGURE for value in figures)
    if len(peaks) > MOST_PEAKS or len(pids) > MOST_PIDS or not whole or not finite:
        raise ValueError("not a note")
    return {**note, **{word: redaction.named(str(note[word]))[:LONGEST_WORD] for word in _WORDS}}
