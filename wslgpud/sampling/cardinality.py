"""Limits how many user-chosen names become series, alike for history, /metrics and OTLP.

Any user can rename a process a thousand times per minute, and each name would be a series for years, so each kind of
name has a fixed number of slots (``metrics.NameLimit``). The risk engine gets each tick before this limit is applied.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from wslgpud.metrics import OTHER, NameLimit
from wslgpud.model import ProcessSample, Reading, Sample, Snapshot, SourceReport

log = logging.getLogger(__name__)

#: a name keeps its slot for this long after it was last seen
KEPT_SECONDS = 3600.0
#: systemd's slice of everything that a user has started, including processes under subordinate uids
_SLICE = re.compile(r"/user\.slice/user-(\d+)\.slice(/|$)")

Owners = Callable[[str], Collection[str]]


class NameSlots:
    """The names of one kind that have a slot, at most ``max_names`` at a time. Pure."""

    def __init__(self, max_names: int) -> None:
        self._max_names = max_names
        #: name -> its owner, and when it was last seen
        self._held: dict[str, tuple[str, float]] = {}

    def refused(self, seen: Collection[str], owners: Owners, now_mono: float) -> set[str]:
        """Return those of ``seen`` that have no slot.

        First come, first served. Once all slots are taken, a user who holds fewer takes one from the user who holds
        most, so no user's names crowd out another's. ``owners`` returns the users of a name.
        """
        held = self._held
        held.update({name: (held[name][0], now_mono) for name in seen if name in held})
        new = [name for name in seen if name not in held]
        if not new:
            return set()
        self._held = held = {n: place for n, place in held.items() if now_mono - place[1] < KEPT_SECONDS}
        counts = Counter(owner for owner, _ in held.values())
        for name in new:
            owner_name = min(owners(name) or ("",), key=lambda owner: counts[owner])
            if len(held) < self._max_names or self._make_room(counts, owner_name):
                held[name] = owner_name, now_mono
                counts[owner_name] += 1
        return {name for name in seen if name not in held}

    def _make_room(self, counts: Counter[str], newcomer: str) -> bool:
        """Take a slot from the user who holds most, if that leaves them no fewer than the newcomer then has."""
        greediest, held_count = counts.most_common(1)[0]
        if counts[newcomer] + 1 >= held_count:
            return False
        del self._held[min((n for n in self._held if self._held[n][0] == greediest), key=lambda n: self._held[n][1])]
        counts[greediest] -= 1
        return True


class CardinalityLimiter:
    """Assigns slots to the names of each tick."""

    def __init__(self) -> None:
        self._places: dict[str, NameSlots] = {}
        self._warned_mono: dict[str, float] = {}
        self._chosen: dict[str, tuple[Sample, Sequence[tuple[NameLimit, str]]]] = {}

    def limited(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with names without a slot summed up or omitted; usually unchanged."""
        seen: dict[tuple[str, int], dict[str, None]] = {}
        for report in snapshot.reports:
            if report.sample is not (self._chosen.get(report.name) or (None,))[0]:
                self._chosen[report.name] = report.sample, _chosen(report.sample)
            for names, name in self._chosen[report.name][1]:
                seen.setdefault((names.kind, names.an_hour), {})[name] = None
        refused = {kind: self._refused(kind, most, some, snapshot) for (kind, most), some in seen.items()}
        if not any(refused.values()):
            return snapshot
        return replace(snapshot, reports=tuple(_without(report, refused) for report in snapshot.reports))

    def _refused(self, kind: str, max_names: int, seen: Collection[str], snapshot: Snapshot) -> set[str]:
        places = self._places.setdefault(kind, NameSlots(max_names))
        refused = places.refused(seen, lambda name: owners(name, snapshot.processes), snapshot.mono)
        warned = self._warned_mono.get(kind)
        if refused and (warned is None or snapshot.mono - warned >= KEPT_SECONDS):
            self._warned_mono[kind] = snapshot.mono
            log.warning(
                "more than %d names of the kind %r within an hour; the rest has no series of its own", max_names, kind
            )
        return refused


def _chosen(sample: Sample) -> list[tuple[NameLimit, str]]:
    """Return the names in a sample that users have chosen."""
    limited = ((reading, names) for reading in sample.readings for names in reading.spec.names)
    return [
        (names, name) for reading, names in limited if (name := names.chosen(reading.spec, reading.labels)) is not None
    ]


def owners(name: str, processes: Iterable[ProcessSample]) -> set[str]:
    """Return the users of a name: those in whose slice the cgroup lies, or who run a program of that name."""
    if own := _SLICE.match(name):
        return {own[1]}
    # A process's slice says more than its uid, as any user may have 65,536 subordinate uids.
    running = ((_SLICE.match(p.cgroup), p.uid) for p in processes if name in (p.name, p.command))
    return {own[1] if own else str(uid) for own, uid in running}


def _without(report: SourceReport, refused: dict[str, set[str]]) -> SourceReport:
    readings: dict[tuple[str, tuple[str, ...]], Reading] = {}
    for reading in report.sample.readings:
        admitted = _admitted(reading, refused)
        if admitted is None:
            continue
        key = (admitted.spec.name, admitted.labels)
        if key in readings and OTHER in admitted.labels:
            admitted = admitted._replace(value=readings[key].value + admitted.value)
        readings[key] = admitted
    return replace(report, sample=replace(report.sample, readings=tuple(readings.values())))


def _admitted(reading: Reading, refused: dict[str, set[str]]) -> Reading | None:
    """Return a reading with names without a slot replaced; None to omit it."""
    spec, _, labels = reading
    for names in spec.names:
        if names.chosen(spec, labels) not in refused.get(names.kind, ()):
            continue
        if not names.summed:
            return None
        at = spec.labels.index(names.label)
        labels = (*labels[:at], OTHER, *labels[at + 1 :])
    return reading if labels is reading.labels else reading._replace(labels=labels)
