"""The series that are read now, each with the number under which its readings are kept. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from wslgpud.metrics import OTHER, MetricSpec
from wslgpud.store import schema
from wslgpud.store.numbers import Found, SeriesKey
from wslgpud.store.pending import dumps

#: a series that is not read any more is forgotten after one to two times this
TURN_SECONDS = 3600.0


class Series(NamedTuple):
    """Under which number the readings of a series are kept; ``number`` is empty where they are not."""

    number: str
    divisor: int
    key: SeriesKey

    @property
    def numbered(self) -> bool:
        """Tell whether it has its final number: a provisional one is negative."""
        return self.number.isdigit()


class _New(NamedTuple):
    """A series whose number is yet to be looked up."""

    spec: MetricSpec
    labels: tuple[str, ...]
    key: SeriesKey


#: metric -> label values -> series
_Generation = dict[str, dict[tuple[str, ...], Series]]


class SeriesInUse:
    """Series from their first reading until an hour or two after the last one.

    What waits to be written refers to them, so ``turn`` is called only while nothing waits.
    """

    def __init__(self) -> None:
        """No series is in use, and no database is known."""
        self.known: _Generation = {}
        self._before: _Generation = {}
        self._turned_mono: float | None = None
        self._new: dict[int, _New] = {}
        self._last_new = 0
        self._host_id = 0
        self._newest = 0
        #: those whose rows are to be written
        self.unsaved: list[tuple[int, SeriesKey]] = []

    def learn(self, spec: MetricSpec, labels: tuple[str, ...]) -> Series:
        """Return a series that was not read since the last turn, under a provisional number if need be."""
        found = self._before.get(spec.name, {}).get(labels)
        if found is None:
            divisor = 0 if spec.decimals is None else 10**spec.decimals
            text = dumps(dict(zip(spec.labels, labels, strict=False)))
            key = SeriesKey(spec.name, spec.kind, text, divisor)
            self._last_new -= 1
            self._new[self._last_new] = _New(spec, labels, key)
            found = Series(str(self._last_new), divisor, key)
        self.known.setdefault(spec.name, {})[labels] = found
        return found

    def turn(self, now_mono: float) -> None:
        """Forget the series that were not read for one to two hours."""
        if self._turned_mono is None:
            self._turned_mono = now_mono
        if now_mono - self._turned_mono >= TURN_SECONDS and not self._new and not self.unsaved:
            self._turned_mono, self._before, self.known = now_mono, self.known, {}

    def keys(self) -> list[SeriesKey]:
        """Return those that have a number."""
        return [series.key for _, _, series in self._all() if series.numbered]

    def unnumbered(self) -> list[SeriesKey]:
        """Return those that wait for ``number``."""
        return [new.key for new in self._new.values()]

    def uses(self, number: int) -> bool:
        """Tell whether a number is in use."""
        return any(series.number == str(number) for _, _, series in self._all())

    def number(self, keys: Collection[SeriesKey], found: Found) -> dict[int, int | None]:
        """Give new series their numbers; return provisional ones with the final ones, None for none.

        A metric whose names others choose gets no more of them than ``found.room``.
        """
        self._newest = max(self._newest, found.newest)
        room, free = dict(found.room), iter(found.free)
        moved: dict[int, int | None] = {}
        became: dict[str, Series] = {}
        for provisional, new in [item for item in self._new.items() if item[1].key in keys]:
            del self._new[provisional]
            row = found.rows.get(new.key.identity)
            number = row.id if row is not None else None
            if row is None and self._is_room(new, room):
                number = self._unused(free)
            moved[provisional] = number
            if number is None:
                became[str(provisional)] = self._instead(new)
            else:
                self._keep(number, new.key, row and row.kind)
                became[str(provisional)] = Series(str(number), new.key.divisor, new.key)
        for named, labels, series in self._all() if became else ():
            now = series
            while now.number in became:
                now = became[now.number]
            named[labels] = now
        return moved

    def adopt(self, host_id: int, found: Found) -> dict[int, int | None]:
        """Let all have the numbers of an opened database; return the old numbers that have changed."""
        self._host_id, self._newest = host_id, found.newest
        self.unsaved.clear()
        first, last = schema.series_range(host_id)
        moved: dict[int, int | None] = {}
        in_use = [entry for entry in self._all() if entry[2].numbered]
        homeless = []
        for entry in in_use:
            series = entry[2]
            before, row = int(series.number), found.rows.get(series.key.identity)
            if row is not None:
                moved[before] = row.id
                self._keep(row.id, series.key, row.kind)
            elif max(first, found.newest) < before <= last:
                moved[before] = before
                self._keep(before, series.key, None)
            else:
                homeless.append(series)
        # after those: a new number must be nobody's
        free = iter(found.free)
        for series in homeless:
            if int(series.number) not in moved:
                number = moved[int(series.number)] = self._unused(free)
                if number is not None:
                    self._keep(number, series.key, None)
        for named, labels, series in in_use:
            number = moved[int(series.number)]
            named[labels] = series._replace(number="" if number is None else str(number))
        return {before: now for before, now in moved.items() if before != now}

    def _all(self) -> Iterator[tuple[dict[tuple[str, ...], Series], tuple[str, ...], Series]]:
        for generation in (self._before, self.known):
            for named in generation.values():
                for labels, series in list(named.items()):
                    yield named, labels, series

    @staticmethod
    def _is_room(new: _New, room: dict[str, int]) -> bool:
        if not any(names.chosen(new.spec, new.labels) is not None for names in new.spec.names):
            return True
        room[new.key.metric] = room.get(new.key.metric, 0) - 1
        return room[new.key.metric] >= 0

    def _unused(self, free: Iterator[int]) -> int | None:
        """Return a number that no series has: the next one; when all are used up, one that is free again."""
        first, last = schema.series_range(self._host_id)
        number = max(self._newest, first) + 1
        if number > last:
            return next(free, None)
        self._newest = number
        return number

    def _keep(self, number: int, key: SeriesKey, kind: str | None) -> None:
        """Have a series written unless its row says the same already."""
        self._newest = max(self._newest, number)
        if kind != key.kind:
            self.unsaved.append((number, key))

    def _instead(self, new: _New) -> Series:
        """Return the series as which one without a number of its own counts."""
        labels = list(new.labels)
        for names in new.spec.names:
            labels[new.spec.labels.index(names.label)] = OTHER
        if tuple(labels) == new.labels or not all(names.summed for names in new.spec.names):
            return Series("", new.key.divisor, new.key)
        return self.known.get(new.spec.name, {}).get(tuple(labels)) or self.learn(new.spec, tuple(labels))
