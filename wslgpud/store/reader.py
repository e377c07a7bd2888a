"""Reading history, from this process or another, while the daemon writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Engine, func, select

from wslgpud.model import Level, Number, Transition
from wslgpud.store import engine as engines
from wslgpud.store import migrations, schema
from wslgpud.store.journal import forecast_from
from wslgpud.store.records import Point, ProcessPoint, SeriesRef

#: ``latest`` looks back this far for series that are read less often than every tick
LATEST_MS = 120_000
#: digits of the longest number in a tick: a 64-bit integer has 20, a double 25 at most
_NUMBER_WIDTH = 26


class Reader:
    """Connections that only read; usable from several threads."""

    def __init__(self, target: str) -> None:
        """Look into the database at ``target`` (a path or a URL).

        Raises:
            StoreError: there is none, a newer wslgpud wrote it, or it cannot be read.
        """
        self._target = target
        self._engine: Engine = engines.reader_engine(target)
        with engines.explained(target), self._engine.begin() as connection:
            migrations.refuse_newer(migrations.applied(connection), engines.shown(target))

    def close(self) -> None:
        """Let the connections go."""
        self._engine.dispose()

    def series(self, pattern: str = "*") -> list[SeriesRef]:
        """Return the series whose text (``ram_bytes{kind="free"}``) or metric matches a shell pattern."""
        with engines.explained(self._target), self._engine.begin() as connection:
            refs = {ref for ref, _, _ in self._all_series(connection).values()}
        bare = pattern.removeprefix("wslgpud_")
        return sorted(r for r in refs if fnmatchcase(str(r), bare) or fnmatchcase(r.metric, bare))

    def read(
        self, series: SeriesRef, start_wall: float, end_wall: float, step: float | None = None
    ) -> list[Point]:
        """Return the values between two moments (both included), by time.

        With ``step`` (seconds) one point for each clock-aligned step that has values, stamped with its
        beginning: the last value of a counter, the mean of anything else. Gaps stay gaps.
        """
        start, end = round(start_wall * 1000), round(end_wall * 1000)
        points: list[tuple[int, Number]] = []
        kind = ""
        with engines.explained(self._target), self._engine.begin() as connection:
            for number, (ref, kind_of, divisor) in self._all_series(connection).items():
                if ref == series:
                    kind = kind_of
                    points += _ticks_of(connection, number, divisor, start, end)
        points.sort(key=lambda p: p[0])
        if step is None:
            return [Point(ms / 1000, value) for ms, value in points]
        return list(_stepped(points, max(1, round(step * 1000)), last=kind == "counter"))

    def latest(self) -> dict[SeriesRef, Point]:
        """Return the last value of every series seen in the last minutes that were recorded."""
        tick = schema.tick
        found: dict[SeriesRef, Point] = {}
        with engines.explained(self._target), self._engine.begin() as connection:
            known = self._all_series(connection)
            newest = connection.execute(select(tick.c.ms).order_by(tick.c.id.desc()).limit(1)).scalar()
            if newest is None:
                return {}
            rows = connection.execute(
                select(tick.c.ms, tick.c.readings)
                .where(tick.c.ms >= newest - LATEST_MS)
                .order_by(tick.c.id.desc())
                .limit(LATEST_MS // 100)
            )
            for ms, readings in rows:
                if ms < newest - LATEST_MS:
                    break
                for key, value in json.loads(readings).items():
                    ref, _, divisor = known[int(key)]
                    if ref not in found:
                        found[ref] = Point(ms / 1000, unscaled(value, divisor))
        return found

    def processes(self, start_wall: float, end_wall: float) -> list[ProcessPoint]:
        """Return the processes that were recorded between two moments, by time."""
        tick = schema.tick
        query = (
            select(tick.c.ms, tick.c.processes)
            .where(tick.c.ms.between(round(start_wall * 1000), round(end_wall * 1000)))
            .where(tick.c.processes.is_not(None))
            .order_by(tick.c.ms, tick.c.id)
        )
        with engines.explained(self._target), self._engine.begin() as connection:
            return [
                ProcessPoint(ms / 1000, pid, start, name, rss * 1024, swap * 1024)
                for ms, text in connection.execute(query)
                for pid, start, name, rss, swap in json.loads(text)
            ]

    def transitions(self, since_wall: float = 0.0) -> list[tuple[int, Transition]]:
        """Return the changes of level since a moment with their ids, by time."""
        table = schema.transition
        query = select(table).where(table.c.ms >= round(since_wall * 1000)).order_by(table.c.ms, table.c.id)
        with engines.explained(self._target), self._engine.begin() as connection:
            return [(row.id, _transition(row)) for row in connection.execute(query)]

    @staticmethod
    def _all_series(connection: Connection) -> dict[int, tuple[SeriesRef, str, int]]:
        """Map ids to (series, kind, divisor); one series has several ids if its precision was changed."""
        query = select(schema.series, schema.host.c.name).join(
            schema.host, schema.host.c.id == schema.series.c.host
        )
        return {
            row.id: (
                SeriesRef(row.metric, tuple(json.loads(row.labels).items()), row.name), row.kind, row.divisor
            )
            for row in connection.execute(query)
        }  # fmt: skip


def unscaled(number: Number, divisor: int) -> Number:
    """Return the value that was kept as ``number``: the float nearest to its decimal, or the integer."""
    return number / divisor if divisor > 1 else number


def _ticks_of(
    connection: Connection, number: int, divisor: int, start: int, end: int
) -> Iterator[tuple[int, Number]]:
    """Return (ms, value) of one series among the ticks that are not sealed yet.

    The text is cut out by position: parsing every tick as JSON would take twenty times as long.
    """
    tick, needle = schema.tick, f'"{number}":'
    find = func.instr if connection.dialect.name == "sqlite" else func.strpos
    position = find(tick.c.readings, needle)
    query = (
        select(tick.c.ms, func.substr(tick.c.readings, position + len(needle), _NUMBER_WIDTH))
        .where(tick.c.ms.between(start, end), position > 0)
        .order_by(tick.c.ms, tick.c.id)
    )
    for ms, text in connection.execute(query):
        digits = text.partition(",")[0].rstrip("}")
        yield ms, unscaled(int(digits), divisor) if divisor else float(digits)


def _stepped(points: Iterable[tuple[int, Number]], step_ms: int, *, last: bool) -> Iterator[Point]:
    for bucket, group in groupby(points, key=lambda p: p[0] // step_ms):
        values = [value for _, value in group]
        yield Point(bucket * step_ms / 1000, values[-1] if last else sum(values) / len(values))


def _transition(row: Any) -> Transition:
    forecast = None if row.forecast is None else forecast_from(json.loads(row.forecast))
    return Transition(
        row.ms / 1000,
        row.mono,
        row.resource,
        row.rule,
        Level(row.old),
        Level(row.new),
        row.headline,
        forecast,
    )
