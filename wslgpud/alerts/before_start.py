"""Kills from before the first start, from the logs that remain: recorded as incidents that are over, sent to nobody.

People install this after a crash: then it must not say that nothing went wrong.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from wslgpud.alerts.blackbox import in_background
from wslgpud.alerts.oom_kills import resource_of
from wslgpud.alerts.rules import KILLED_BEFORE
from wslgpud.config import Config
from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import Event, Level, Transition
from wslgpud.risk.attribution import full_name
from wslgpud.sources import parse_uint, table
from wslgpud.sources.kernel_log import KernelLogSource, LineParser
from wslgpud.words import Fact

if TYPE_CHECKING:
    from wslgpud.alerts.manager import AlertManager

log = logging.getLogger(__name__)

#: of one resource, kills that follow one another within this time are one incident
BURST_SECONDS = 600.0
#: incidents told; more than anybody reads
MAX_INCIDENTS = 20
#: lines that a kill consists of, see ``sources.kernel_log``: the journal filters, so that little is read
_LINES = "oom-kill:|Killed process|Kill process|killed as a result of limit|due to memory.oom.group"
_JOURNAL = ("journalctl", "_TRANSPORT=kernel", "SYSLOG_FACILITY=0", "--since=-30days", "--lines=1000", "--no-pager")
_JOURNAL_SECONDS = 30.0


def incidents(host: Host, boot_id: str) -> list[Transition]:
    """Return the beginning of an incident for each kill, or burst of kills, oldest first.

    This boot's log comes from the kernel, that of earlier boots from the journal. Where neither shows a kill that the
    kernel has counted, one says how many there were.
    """
    own = list(_of_this_boot(host))
    journal = list(_of_journal(host))
    earlier = [event for boot, event in journal if boot != boot_id.replace("-", "")]
    own = own or [event for boot, event in journal if boot == boot_id.replace("-", "")]
    rows = [_row(host, burst) for burst in _bursts([*earlier, *own])][-MAX_INCIDENTS:]
    counted = parse_uint(table(host.read_optional("/proc/vmstat")).get("oom_kill")) or 0
    if counted and not own:
        wall, mono = host.clock.wall(), host.clock.mono()
        facts: dict[str, Fact] = {"count": counted, "boot_wall": wall - mono}
        rows.append(Transition(wall, mono, "ram", KILLED_BEFORE, Level.OK, Level.WARNING, facts=facts))
    return rows


def record_in_background(host: Host, boot_id: str, alerts: AlertManager) -> None:
    """Record them without delaying the start: the journal may take long."""

    def work() -> None:
        rows = incidents(host, boot_id)
        for row in rows:
            alerts.report(row)
            alerts.report(replace(row, old=row.new, new=Level.OK))
        if rows:
            log.warning("programs were killed for lack of memory before wslgpud was started: see 'wslgpud incidents'")

    in_background(work, "what happened before the first start")


def _of_this_boot(host: Host) -> Iterator[Event]:
    source = KernelLogSource(host, Config())
    try:
        while not source.caught_up:
            events = source.read().events
            # What comes from now on the daemon tells itself.
            yield from (event for event in events if event.kind == "oom_kill" and event.fields.get("past"))
            if not host.live:
                return
    except (NoData, SourceError) as error:
        log.debug("this boot's kernel log cannot be read: %s", error)
    finally:
        source.close()


def _of_journal(host: Host) -> Iterator[tuple[str, Event]]:
    """Yield the kills in the journal, oldest first, each with the id of its boot."""
    fields = ("--output=json", "--output-fields=MESSAGE,_BOOT_ID", "--quiet", f"--grep={_LINES}")
    try:
        lines = host.run([*_JOURNAL, *fields], _JOURNAL_SECONDS).splitlines()
    except (NoData, SourceError) as error:
        log.debug("the journal cannot be read: %s", error)
        return
    for boot, entries in groupby(map(_entry, lines), key=lambda entry: str(entry.get("_BOOT_ID", ""))):
        parser = LineParser()
        for entry in entries:
            stamp, text = parse_uint(str(entry.get("__REALTIME_TIMESTAMP"))), entry.get("MESSAGE")
            event = parser.add(text) if isinstance(text, str) else None
            if event is not None and event.kind == "oom_kill" and stamp is not None:
                yield boot, Event(event.kind, stamp / 1e6, event.text, dict(event.fields))


def _entry(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _bursts(kills: Iterable[Event]) -> list[list[Event]]:
    bursts: list[list[Event]] = []
    latest: dict[str, list[Event]] = {}
    for kill in sorted(kills, key=lambda kill: kill.wall):
        known = latest.get(resource_of(kill))
        if known is None or kill.wall - known[-1].wall > BURST_SECONDS:
            latest[resource_of(kill)] = known = []
            bursts.append(known)
        known.append(kill)
    return bursts


def _row(host: Host, kills: Sequence[Event]) -> Transition:
    last = kills[-1]
    facts: dict[str, Fact] = {**last.fields, "killed_wall": last.wall}
    facts["who"] = full_name(str(last.fields["victim"]), int(last.fields["pid"]))
    if len(kills) > 1:
        facts["kills"] = len(kills)
    mono = host.clock.mono() - (host.clock.wall() - last.wall)
    return Transition(last.wall, mono, resource_of(last), KILLED_BEFORE, Level.OK, Level.WARNING, facts=facts)
