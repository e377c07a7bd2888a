"""The black box: reports, at the start, how the previous run ended if it did not shut down cleanly.

The last ticks are in the database, because the store syncs each one while risk is raised. Evidence that may be gone
later is collected now and stored as an event: the kernel log of that boot, and Windows' crash dumps.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from wslgpud.alerts.incidents import Incident
from wslgpud.alerts.rules import UNCLEAN_END, VRAM_STRESS
from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import Event, Level, Number, Sample, Snapshot, SourceReport, Transition
from wslgpud.probes.interop import automount_root
from wslgpud.risk.attribution import full_name
from wslgpud.security.redaction import masked
from wslgpud.security.safe_files import Folder
from wslgpud.store import DaemonRun, ProcessPoint, Store
from wslgpud.words import Fact, MessageLike, template
from wslgpud.words.units import one_line

if TYPE_CHECKING:
    from wslgpud.alerts.manager import AlertManager

log = logging.getLogger(__name__)

EVENT = "black_box"
#: how long before the end growth is examined
WINDOW_SECONDS = 300.0
#: a process that grew by less did not end the machine
MIN_GROWTH_BYTES = 64 << 20
#: Rules that do not count as causes. Otherwise the previous unclean end would turn each one soon after into a warning,
#: and an incident open for weeks one every evening.
_NO_CAUSE = frozenset({UNCLEAN_END, VRAM_STRESS, "source_stale", "store_failing", "store_damaged"})
_JOURNAL_SECONDS = 20.0
_MAX_LINES, _MAX_USERS, _MAX_DUMPS = 40, 20, 1000
#: WSL writes dumps of crashed programs and the texts of kernel panics there:
#: https://github.com/microsoft/WSL/blob/master/src/windows/service/exe/WslCoreVm.cpp
_DUMPS = "AppData/Local/Temp/wsl-crashes"
_TELLING = re.compile(
    r"(?<!TCP: )out of memory|oom-kill|killed process|kernel panic|BUG:|soft lockup|hard LOCKUP|hung_task|"
    r"blocked for more than|detected (?:expedited )?stall|misc dxg|NVRM|I/O error|hv_storvsc .* status: scsi 0x2|"
    r"EXT4-fs error|Remounting filesystem read-only|page allocation failure",
    re.IGNORECASE,
)
#: TCP's message concerns its own limit, and costs no more than a connection: net/ipv4/tcp.c, tcp_check_oom
_FATAL = re.compile(r"(?<!TCP: )out of memory|killed process|kernel panic|BUG:|read-only", re.IGNORECASE)


class GrownProcess(NamedTuple):
    name: str
    pid: int
    grown_bytes: int
    seconds: float


def by_process(points: Iterable[ProcessPoint]) -> list[list[ProcessPoint]]:
    seen: dict[tuple[int, int], list[ProcessPoint]] = {}
    for point in points:
        seen.setdefault((point.pid, point.start_ticks), []).append(point)
    return list(seen.values())


def growths(points: Iterable[ProcessPoint]) -> list[GrownProcess]:
    """Return the processes that grew, the largest growth first."""
    found = []
    for first, last in ((of[0], of[-1]) for of in by_process(points)):
        grown = last.rss_bytes + last.swap_bytes - first.rss_bytes - first.swap_bytes
        found.append(GrownProcess(last.name, last.pid, grown, last.wall - first.wall))
    return sorted((g for g in found if g.grown_bytes >= MIN_GROWTH_BYTES), key=lambda g: -g.grown_bytes)


def kernel_lines(host: Host, boot_id: str) -> list[str]:
    """Return the relevant lines of a boot's kernel log, oldest first; empty where the journal has none."""
    options = ["--dmesg", "--lines=2000", "--no-pager", "--output=short-iso", "--quiet"]
    try:
        text = host.run(["journalctl", f"--boot={boot_id.replace('-', '')}", *options], _JOURNAL_SECONDS)
    except (NoData, SourceError) as error:
        log.debug("no kernel log of the last boot: %s", error)
        return []
    telling = [line for line in text.splitlines() if _TELLING.search(line)]
    # A driver may log a hundred errors after the cause.
    last = sorted(range(len(telling)), key=lambda at: (_FATAL.search(telling[at]) is not None, at))[-_MAX_LINES:]
    return [one_line(masked(telling[at]), 300) for at in sorted(last)]


def crash_dumps(host: Host, since_wall: float) -> list[str]:
    """Return the names of crash files that WSL wrote into Windows' folders since a moment."""
    users = f"{automount_root(host)}c/Users"
    try:
        names = sorted(host.folders(users))[:_MAX_USERS]
    except (NoData, SourceError):
        return []
    found = []
    for name in names:
        # Users can create links in their own folder, which would reveal names of other users' files.
        # or it does not exist
        with contextlib.suppress(OSError), Folder(host.path(users), f"{name}/{_DUMPS}") as folder:
            dumps = folder.names(_MAX_DUMPS)
            found += [f"{folder.path}/{dump}" for dump in dumps if folder.stat(dump).st_mtime >= since_wall]
    return [one_line(name, 300) for name in found[:_MAX_LINES]]


def examine(
    host: Host, store: Store, run: DaemonRun, boot_id: str, before: Sequence[Incident]
) -> tuple[Transition, Snapshot]:
    """Return the announcement of the unclean end of ``run``, and the evidence to store.

    A ``boot_id`` other than the run's means that the machine itself went down; ``before`` are the incidents open then.
    """
    ended = run.stopped_wall or run.started_wall
    machine = run.boot_id != boot_id
    lines = kernel_lines(host, run.boot_id) if machine else []
    dumps = crash_dumps(host, ended - 60.0) if machine else []
    grew = growths(store.reader.processes(ended - WINDOW_SECONDS, ended))
    kept: dict[str, str | Number] = {"ended_wall": ended}
    if grew:
        kept["growing"] = full_name(one_line(grew[0].name, 40), grew[0].pid)
    facts: dict[str, Fact] = {**kept, ("last_wall" if machine else "killed_wall"): ended}
    fatal = [line for line in lines if _FATAL.search(line)]
    trouble: list[MessageLike] = [i.message for i in before if i.level >= Level.WARNING and i.rule not in _NO_CAUSE]
    trouble += [one_line(line, 160).rstrip(".") for line in (*fatal[-1:], *dumps[-1:])]
    if trouble:
        facts["trouble"] = tuple(trouble)
    now, mono = host.clock.wall(), host.clock.mono()
    # WSL routinely ends its VM without notice: alone that is not worth a warning.
    level = Level.WARNING if trouble else Level.INFO
    row = Transition(now, mono, "machine" if machine else "daemon", UNCLEAN_END, Level.OK, level, facts=facts)
    kept |= {"kernel": "\n".join(lines), "dumps": "\n".join(dumps), "boot_id": run.boot_id}
    event = Event(EVENT, now, template("the last run did not shut down cleanly"), kept)
    report = SourceReport(EVENT, "ok", Sample((), events=(event,)), mono, 0.0)
    return row, Snapshot(now, mono, 0, (report,))


def in_background(work: Callable[[], None], what: str) -> None:
    """Look for something at the start without delaying it; a bug in that must end nothing else."""

    def guarded() -> None:
        try:
            work()
        except Exception:
            log.exception("%s could not be examined; please report this", what)

    threading.Thread(target=guarded, name="look-back", daemon=True).start()


def examine_in_background(host: Host, store: Store, run: DaemonRun, boot_id: str, alerts: AlertManager) -> None:
    """Examine and announce without delaying the start: the journal and 9p may take long, or hang."""

    def work() -> None:
        row, kept = examine(host, store, run, boot_id, alerts.left_open)
        store.append(kept, urgent=True)
        alerts.report(row)

    in_background(work, "the end of the last run")
