"""Looks back at the start: how the last run ended if not cleanly, and before the first one, which kills there were.

The last ticks are in the database, because the store syncs each one while risk is raised. Evidence that may be gone
later is collected now and stored as an event: the kernel log of that boot, and Windows' crash dumps. Kills from before
the first start are recorded as incidents that are over, and sent to nobody: people install this after a crash, and then
it must not say that nothing went wrong.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from wslgpud.alerts.incidents import Incident
from wslgpud.alerts.messages import compose
from wslgpud.alerts.oom_kills import resource_of
from wslgpud.alerts.rules import KILLED_BEFORE, UNCLEAN_END, VRAM_STRESS
from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import Event, Level, Number, Sample, Snapshot, SourceReport, Transition
from wslgpud.probes.interop import automount_root
from wslgpud.risk.attribution import full_name
from wslgpud.security.redaction import masked
from wslgpud.security.safe_files import Folder, parsed
from wslgpud.sources import parse_uint, table
from wslgpud.sources.kernel_lines import LineParser
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
_JOURNAL_SECONDS = 30.0
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
#: kills of one resource in the same quarter of an hour are one incident
BURST_SECONDS = 900.0
#: incidents told; more than anybody reads
MAX_INCIDENTS = 20
#: lines that a kill consists of, see ``sources.kernel_lines``: the journal filters, so that little is read
_LINES = "oom-kill:|Killed process|due to memory.oom.group"


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
    lines = _journal(host, f"--boot={boot_id.replace('-', '')}", "--dmesg", "--lines=2000", "--output=short-iso")
    telling = [line for line in lines if _TELLING.search(line)]
    # A driver may log a hundred errors after the cause.
    last = sorted(range(len(telling)), key=lambda at: (_FATAL.search(telling[at]) is not None, at))[-_MAX_LINES:]
    return [one_line(masked(telling[at]), 300) for at in sorted(last)]


def _journal(host: Host, *options: str) -> list[str]:
    try:
        return host.run(["journalctl", *options, "--no-pager", "--quiet"], _JOURNAL_SECONDS).splitlines()
    except (NoData, SourceError) as error:
        log.debug("the journal cannot be read: %s", error)
        return []


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


def earlier_kills(host: Host, boot_id: str) -> list[Transition]:
    """Return the beginning of an incident for each kill in the journal, or burst of kills, oldest first.

    Where it shows none that the kernel has counted in this boot, one says how many there were.
    """
    bursts: dict[tuple[str, float], list[Event]] = {}
    kills = list(_kills_in_journal(host))
    for _, kill in kills:
        bursts.setdefault((resource_of(kill), kill.wall // BURST_SECONDS), []).append(kill)
    rows = [_row(host, burst) for burst in bursts.values()][-MAX_INCIDENTS:]
    counted = parse_uint(table(host.read_optional("/proc/vmstat")).get("oom_kill")) or 0
    wall, mono = host.clock.wall(), host.clock.mono()
    if counted and not any(boot == boot_id.replace("-", "") for boot, _ in kills):
        facts: dict[str, Fact] = {"count": counted, "boot_wall": wall - mono}
        rows.append(Transition(wall, mono, "ram", KILLED_BEFORE, Level.OK, Level.WARNING, facts=facts))
    return rows


def _kills_in_journal(host: Host) -> Iterator[tuple[str, Event]]:
    """Yield the kills in the journal, of all boots, oldest first, each with the id of its boot."""
    kernel = ("_TRANSPORT=kernel", "SYSLOG_FACILITY=0", "--since=-30days", "--lines=1000", f"--grep={_LINES}")
    parser = LineParser()
    for line in _journal(host, *kernel, "--output=json", "--output-fields=MESSAGE,_BOOT_ID"):
        try:
            entry = parsed(line)
        except ValueError:  # the last one may be cut off
            continue
        stamp, text = parse_uint(str(entry.get("__REALTIME_TIMESTAMP"))), entry.get("MESSAGE")
        event = parser.add(text) if isinstance(text, str) else None
        if event is not None and event.kind == "oom_kill" and stamp is not None:
            yield str(entry.get("_BOOT_ID")), Event(event.kind, stamp / 1e6, event.text, dict(event.fields))


def _row(host: Host, kills: Sequence[Event]) -> Transition:
    last = kills[-1]
    facts: dict[str, Fact] = {**last.fields, "killed_wall": last.wall}
    facts["who"] = full_name(str(last.fields["victim"]), int(last.fields["pid"]))
    if len(kills) > 1:
        facts["kills"] = len(kills)
    mono = host.clock.mono() - (host.clock.wall() - last.wall)
    return Transition(last.wall, mono, resource_of(last), KILLED_BEFORE, Level.OK, Level.WARNING, facts=facts)


def record_earlier_kills(host: Host, store: Store, boot_id: str) -> bool:
    """Record kills from before the first start as incidents that are over; return whether there are any."""
    rows = earlier_kills(host, boot_id)
    for row in rows:
        for one in (row, replace(row, old=row.new, new=Level.OK)):
            store.outbox.record(replace(one, message=compose(one).headline), {})
    return bool(rows)


def start(host: Host, store: Store, boot_id: str, alerts: AlertManager) -> None:
    """Look back without delaying the start: the journal and 9p may take long, or hang. A bug in it must end nothing."""
    run = store.previous_run
    if (run is None and not host.live) or (run is not None and run.clean):
        return

    def work() -> None:
        try:
            if run is not None:
                row, kept = examine(host, store, run, boot_id, alerts.left_open)
                store.append(kept, urgent=True)
                alerts.report(row)
                return
            if record_earlier_kills(host, store, boot_id):
                log.warning("programs were killed for lack of memory before the first start: see 'wslgpud incidents'")
        except Exception:
            log.exception("the time before the start could not be examined; please report this")

    threading.Thread(target=work, name="look-back", daemon=True).start()
