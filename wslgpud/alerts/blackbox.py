"""What happened last time: noticed at the start, after a run that did not end in order.

The last ticks are in the database, because the store syncs each one while risk is up. What may be gone later
is gathered now and kept as an event: the kernel's lines of that boot, and the crash dumps that Windows made.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from wslgpud.alerts.incidents import Incident
from wslgpud.alerts.rules import UNCLEAN_END, VRAM_STRESS
from wslgpud.event import Event
from wslgpud.host import Host, NoData, SourceError
from wslgpud.masking import masked
from wslgpud.model import Level, Number, Sample, Snapshot, SourceReport, Transition
from wslgpud.probes.interop import automount_root
from wslgpud.risk.attribution import full_name
from wslgpud.units import one_line
from wslgpud.words import Fact, Said, template

log = logging.getLogger(__name__)

EVENT = "black_box"
#: how much before the end says something about it
WINDOW_SECONDS = 600.0
#: a process that grew by less is not what ended a machine
LEAST_GROWTH_BYTES = 64 << 20
#: What ends no machine. As trouble, the end before this one would make a warning of each that follows soon,
#: and what stays open for weeks one of each evening.
_NO_CAUSE = frozenset({UNCLEAN_END, VRAM_STRESS, "source_stale", "store_failing", "store_damaged"})
_JOURNAL_SECONDS = 20.0
_MOST_LINES = 40
_MOST_USERS = 20
_MOST_DUMPS = 1000
#: WSL writes dumps of programs that crash and the texts of kernel panics there, see wsl2's crash collection:
#: https://github.com/microsoft/WSL/blob/master/src/windows/service/exe/WslCoreVm.cpp
_DUMPS = "AppData/Local/Temp/wsl-crashes"
_TELLING = re.compile(
    r"out of memory|oom-kill|killed process|kernel panic|BUG:|soft lockup|hung_task|blocked for more than|"
    r"misc dxg|NVRM|I/O error|EXT4-fs error|Remounting filesystem read-only|page allocation failure",
    re.IGNORECASE,
)
_FATAL = re.compile(r"out of memory|killed process|kernel panic|BUG:|read-only", re.IGNORECASE)


class Run(Protocol):
    """The last life of the daemon."""

    @property
    def stopped_wall(self) -> float | None:
        """When it last wrote."""

    @property
    def started_wall(self) -> float:
        """When it began."""

    @property
    def boot_id(self) -> str:
        """Which boot it ran in."""


class Keeper(Protocol):
    """What is needed of the store."""

    def append(self, snapshot: Snapshot, *, urgent: bool = False) -> None:
        """Keep a snapshot."""

    def processes(self, start_wall: float, end_wall: float) -> Sequence[Any]:
        """Return the processes recorded between two moments."""


class Audience(Protocol):
    """Who is told."""

    @property
    def left_open(self) -> Sequence[Incident]:
        """What was open when the run ended."""

    def report(self, transition: Transition) -> None:
        """Announce it."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How much a process grew, in bytes over seconds."""

    name: str
    pid: int
    grown_bytes: int
    seconds: float


class Held(NamedTuple):
    """What one process held at a moment; ``store.ProcessPoint`` is alike."""

    wall: float
    pid: int
    start_ticks: int
    name: str
    rss_bytes: int
    swap_bytes: int


def growths(points: Iterable[Any]) -> list[Growth]:
    """Return who grew over the recorded processes (see ``Held``), the most first."""
    seen: dict[tuple[int, int], list[Any]] = {}
    for point in points:
        seen.setdefault((point.pid, point.start_ticks), []).append(point)
    found = [
        Growth(p[-1].name, p[-1].pid, _held(p[-1]) - _held(p[0]), p[-1].wall - p[0].wall)
        for p in seen.values()
    ]
    return sorted((g for g in found if g.grown_bytes >= LEAST_GROWTH_BYTES), key=lambda g: -g.grown_bytes)


def _held(point: Any) -> int:
    return int(point.rss_bytes + point.swap_bytes)


def kernel_lines(host: Host, boot_id: str) -> list[str]:
    """Return the telling lines of a boot's kernel log, oldest first; nothing where the journal has none."""
    command = [
        "journalctl", "--dmesg", f"--boot={boot_id.replace('-', '')}", "--lines=2000", "--no-pager",
        "--output=short-iso", "--quiet",
    ]  # fmt: skip
    try:
        text = host.run(command, _JOURNAL_SECONDS)
    except (NoData, SourceError) as error:
        log.debug("no kernel log of the last boot: %s", error)
        return []
    return [one_line(masked(line), 300) for line in text.splitlines() if _TELLING.search(line)][-_MOST_LINES:]


def crash_dumps(host: Host, since_wall: float) -> list[str]:
    """Return the names of what WSL wrote into Windows' folders for crashes since a moment."""
    users = f"{automount_root(host)}c/Users"
    try:
        names = sorted(host.folders(users))[:_MOST_USERS]
    except (NoData, SourceError):
        return []
    found = []
    for name in names:
        folder = Path(host.path(f"{users}/{name}/{_DUMPS}"))
        try:
            files = islice(folder.iterdir(), _MOST_DUMPS)
            found += [f"{folder}/{file.name}" for file in files if file.lstat().st_mtime >= since_wall]
        except OSError:
            continue  # another user's, or none
    return [one_line(name, 300) for name in found[:_MOST_LINES]]


def examine(
    host: Host, store: Keeper, run: Run, boot_id: str, before: Sequence[Incident]
) -> tuple[Transition, Snapshot]:
    """Return what is to be announced of the end of ``run``, and what is to be kept of it.

    Args:
        host: the machine.
        store: what it recorded.
        run: the run that did not end in order.
        boot_id: of now; another one than the run's means that the machine itself went down.
        before: incidents that were open when it ended.
    """
    ended = run.stopped_wall or run.started_wall
    machine = run.boot_id != boot_id
    lines = kernel_lines(host, run.boot_id) if machine else []
    dumps = crash_dumps(host, ended - 60.0) if machine else []
    grew = growths(store.processes(ended - WINDOW_SECONDS / 2, ended))
    risky = [i for i in before if i.level >= Level.WARNING and i.rule not in _NO_CAUSE]
    fatal = [line for line in lines if _FATAL.search(line)]
    kept: dict[str, str | Number] = {"ended_wall": ended}
    if grew:
        kept["growing"] = full_name(one_line(grew[0].name, 40), grew[0].pid)
    facts: dict[str, Fact] = {**kept, ("last_wall" if machine else "killed_wall"): ended}
    lines_told = (one_line(line, 160).rstrip(".") for line in (*fatal[-1:], *dumps[-1:]))
    trouble: tuple[Said, ...] = (*(i.message for i in risky), *lines_told)
    if trouble:
        facts["trouble"] = trouble
    now, mono = host.clock.wall(), host.clock.mono()
    # WSL ends its machine without asking anybody as a matter of course: alone that is not worth a warning.
    level = Level.WARNING if trouble else Level.INFO
    row = Transition(
        now,
        mono,
        "machine" if machine else "daemon",
        UNCLEAN_END,
        Level.OK,
        level,
        facts=facts,
    )
    kept |= {"kernel": "\n".join(lines), "dumps": "\n".join(dumps), "boot_id": run.boot_id}
    event = Event(EVENT, now, template("the last run did not end in order"), kept)
    report = SourceReport(EVENT, "ok", Sample((), events=(event,)), mono, 0.0)
    return row, Snapshot(now, mono, 0, (report,))


def examine_in_background(host: Host, store: Keeper, run: Run, boot_id: str, audience: Audience) -> None:
    """Examine and announce without holding up the start: the journal and 9p may take long, or for ever."""
    before = audience.left_open

    def work() -> None:
        try:
            row, kept = examine(host, store, run, boot_id, before)
        except Exception:
            log.exception("the end of the last run could not be examined; please report this")
            return
        store.append(kept, urgent=True)
        audience.report(row)

    threading.Thread(target=work, name="black-box", daemon=True).start()
