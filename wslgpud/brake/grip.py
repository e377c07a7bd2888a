"""What is held, how it is let go, and the note of it on disk. Standard library only: the watchdog lives by it as well.

A job that is alone in a cgroup of its own is frozen there, with all that it starts. Every other is stopped, process by
process. What is held is in a file before anybody is stopped, so that whoever comes after the daemon finds it: the next
daemon, or ``wslgpud brake release``.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from wslgpud.security import safe_files
from wslgpud.security.exact_signals import ExactProcess, send

FILE = "held.json"
#: more than the most members of a job, see ``jobs``; and how many jobs are held at once
MOST_IDENTITIES, MOST_HELD = 4096, 8
_FREEZE, _EVENTS = "cgroup.freeze", "cgroup.events"


class Grip(NamedTuple):
    """A job that is held: its processes, and the folder of its cgroup where that is frozen (else empty)."""

    members: tuple[ExactProcess, ...]
    cgroup: str = ""


def let_go(grip: Grip) -> int:
    """Let a job go on; return how many of its processes were there. One that is gone is no trouble."""
    if grip.cgroup:
        with contextlib.suppress(OSError):  # the group has ended
            set_frozen(grip.cgroup, frozen=False)
            return sum(Path(f"/proc/{one.pid}").exists() for one in grip.members)
    # Children first: a parent that goes on may look for them.
    return sum(not send(one, signal.SIGCONT) for one in reversed(grip.members))


def set_frozen(cgroup: str, *, frozen: bool) -> None:
    """Freeze all processes of a cgroup (version 2), or thaw them. Raises OSError: that is not possible."""
    # No folder on the way is a link: there are none in this file system, and ``known`` saw to the rest.
    descriptor = os.open(f"{cgroup}/{_FREEZE}", os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(descriptor, b"1" if frozen else b"0")
    finally:
        os.close(descriptor)


def is_frozen(cgroup: str) -> bool | None:
    """Tell whether all in a cgroup stand still; None where it has ended, or is empty."""
    try:
        facts = dict(line.split() for line in Path(f"{cgroup}/{_EVENTS}").read_text(encoding="ascii").splitlines())
        return None if facts.get("populated") == "0" else facts.get("frozen") == "1"
    except (OSError, ValueError):
        return None


def root() -> str:
    """Return where the cgroups of version 2 are mounted, empty where they are not."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
            _, point, kind, *_ = (*line.split(" "), "", "", "")
            if kind == "cgroup2":
                return point
    return ""


def folder_of(path: str) -> str:
    """Return the folder of a cgroup by its path in the tree; empty where that is no path of one, or only the root."""
    top = root()
    plain = path.startswith("/") and not {"", ".", ".."} & {*path.split("/")[1:]}
    return f"{top}{path}" if top and plain else ""


def known(document: object) -> Grip:
    """Return what ``told`` has written. Raises ValueError, TypeError or KeyError: it is something else."""
    if not isinstance(document, dict):
        raise TypeError("not a job")
    members = tuple(ExactProcess(*(int(number) for number in one)) for one in document["members"])
    path = document["cgroup"]
    top = root()
    inside = isinstance(path, str) and bool(top) and path.startswith(f"{top}/") and path == folder_of(path[len(top) :])
    if len(members) > MOST_IDENTITIES or not (path == "" or inside):
        raise ValueError("not a job")
    return Grip(members, path)


def told(grip: Grip) -> dict[str, object]:
    """Return a job that is held as JSON can hold it."""
    return {"members": grip.members, "cgroup": grip.cgroup}


class HeldFile:
    """The list of what is held, in the daemon's folder, and the number that the last job had."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def read(self) -> tuple[int, dict[int, Grip]]:
        """Return the last number, and by number what this boot's daemons hold; nothing where that is not known.

        Start times count from the boot: those of an earlier one could name somebody else now.
        """
        last = 0
        held: dict[int, Grip] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            document = safe_files.parsed(safe_files.contents(self.path))
            last = min(max(0, int(document["last"])), 1 << 31)
            if document["boot_id"] == boot_id():
                for number, one in list(document["held"].items())[:MOST_HELD]:
                    with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError):
                        held[int(number)] = known(one)
        return last, held

    def write(self, last: int, held: Iterable[tuple[int, Grip]]) -> None:
        """Replace the list in one step. Raises OSError: it cannot be written.

        Not synced: after a power cut nobody is stopped any more, and a disk must not be waited for now.
        """
        import json

        document = {"boot_id": boot_id(), "last": last, "held": {number: told(grip) for number, grip in held}}
        safe_files.put(self.path, json.dumps(document))

    def release(self) -> list[int]:
        """Let all go on that is on the list; return the numbers of those of which somebody was still there."""
        last, held = self.read()
        going = [number for number, grip in held.items() if let_go(grip)]
        if held:
            with contextlib.suppress(OSError):  # the worst that an entry too many does is another SIGCONT
                self.write(last, ())
        return going


def boot_id() -> str:
    """Return what tells this boot from all others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def stop_each(members: Sequence[ExactProcess]) -> dict[ExactProcess, str]:
    """Stop processes, parents first; return why some were not, by process."""
    problems = {one: send(one, signal.SIGSTOP) for one in members}
    return {one: problem for one, problem in problems.items() if problem}
