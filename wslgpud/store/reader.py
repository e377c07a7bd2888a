"""Queries of a history, from any process, while the daemon writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from typing import Any, TypeVar, final

from sqlalchemy import ColumnElement, Connection, Row, Select, Table, false, func, null, or_, select, true
from sqlalchemy.exc import DBAPIError

from wslgpud.model import Event, Number, StressResult, Transition
from wslgpud.security import safe_files
from wslgpud.store import engines, records, schema, series_reader
from wslgpud.store.codec import Summary
from wslgpud.store.errors import explain, explained, gap, is_damage
from wslgpud.store.records import Bucket, Delivery, GpuProcessPoint, Oldest, Point, ProcessPoint, SeriesRef
from wslgpud.store.series_reader import Asked, unscaled

#: limit of listed series; unlisted ones can still be read
MAX_LISTED = 20_000
#: limit of changes of level in a list; more are available one at a time
MAX_TRANSITIONS = 1000
#: limit of events; a program that is killed repeatedly causes thousands per hour
MAX_EVENTS = 5000

_T = TypeVar("_T", Point, Bucket)
_P = TypeVar("_P", ProcessPoint, GpuProcessPoint)


@final
class Reader(AbstractContextManager["Reader"]):
    """Read-only connections; thread-safe."""

    def __init__(self, target: str, host: str = "") -> None:
        """Open the database at ``target`` (a path or a URL).

        With ``host``, rows that are not series (processes, events, incidents, stress runs) are only that machine's:
        many may write into one database, and their pids and resources have the same names.

        Raises:
            StoreError: there is none, a newer wslgpud wrote it, or it cannot be read.
        """
        self._target, self.host = target, host
        #: the file, None for a database server
        self.path = engines.sqlite_path(target)
        #: device and inode of the file that is open
        self.identity: tuple[int, int] | None = None
        self._engine = engines.reader_engine(target)
        try:
            with self.connected() as connection:
                self.version = engines.version_of(connection, engines.shown(target))
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._engine.dispose()

    def check(self) -> list[str]:
        """Check the whole file; return the faults found, or raise StoreError: it could not be read."""
        if self.path is None:
            return []
        self._follow()
        try:
            with self._engine.begin() as connection:
                rows = connection.exec_driver_sql("PRAGMA quick_check(10)").scalars().all()
        except DBAPIError as error:
            if not is_damage(error):
                raise explain(error, self._target) from error
            return [str(error.orig)]
        return [row for row in rows if row != "ok"]

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """Yield a connection in a transaction with a consistent snapshot, or raise StoreError."""
        self._follow()
        with explained(self._target), self._engine.begin() as connection:
            yield connection

    def _follow(self) -> None:
        identity = engines.identity(self.path)
        if identity not in (None, self.identity):
            if self.identity is not None:
                self._engine.dispose()
                self._engine = engines.reader_engine(self._target)
            self.identity = identity

    def series(self, pattern: str = "*", host: str = "") -> list[SeriesRef]:
        """Return the series that match a pattern (see ``records.matcher``), of one machine if named."""
        return sorted(self.kinds(pattern, host))

    def kinds(self, pattern: str = "*", host: str = "") -> dict[SeriesRef, str]:
        """Return such series with the kinds (gauge, counter) of their metrics, up to ``MAX_LISTED``."""
        wanted = records.matcher(pattern)
        with self.connected() as connection:
            matching = ((row.ref, row.kind) for row in series_reader.listed(connection, host) if wanted(row.ref))
            return dict(islice(matching, MAX_LISTED))

    def hosts(self) -> list[str]:
        with self.connected() as connection:
            return list(connection.scalars(select(schema.host.c.name).order_by(schema.host.c.name)))

    def oldest(self) -> Oldest:
        """Return since when there are samples, minutes and hours, of the host with the longest history."""
        with self.connected() as connection:
            hosts = connection.scalars(select(schema.host.c.id)).all()
            begins = zip(*(series_reader.oldest(connection, host) for host in hosts), strict=True)
            known = [[ms / 1000 for ms in of if ms is not None] for of in begins]
        return Oldest(*(min(walls, default=None) for walls in known))

    def unsealed(self) -> tuple[int, float | None]:
        """Return the number of unsealed ticks, and the time of the oldest; a server may not have them yet."""
        of = schema.batch.c
        with self.connected() as connection:
            ticks, ms = connection.execute(select(func.sum(of.ticks), func.min(of.ms)).where(schema.unsealed)).one()
        return ticks or 0, None if ms is None else ms / 1000

    def read(self, series: SeriesRef, start_wall: float, end_wall: float, step: float | None = None) -> list[Point]:
        """Return the values between two moments (both included), by time.

        With ``step`` (seconds), one point for each clock-aligned step with values, stamped with its beginning: the last
        value of a counter, the mean of anything else. Gaps stay gaps. The same applies without ``step`` to times whose
        samples are no longer kept, in steps of a minute or an hour.
        """
        if step is None:
            return list(map(records.new_point, zip(*self.columns(series, start_wall, end_wall), strict=True)))
        points: list[list[Point]] = []
        for one, steps in self._stepped(series, start_wall, end_wall, step):
            values = unscaled(series_reader.shown(one, steps), one.divisor)
            points.append([Point(ms / 1000, value) for (ms, _), value in zip(steps, values, strict=True)])
        return _one_each(points)

    def columns(self, series: SeriesRef, start_wall: float, end_wall: float) -> tuple[list[float], list[Number]]:
        """Return the same as ``read``, as separate lists of times and values, which is faster for many."""
        with self.connected() as connection:
            asked = series_reader.asked_for(connection, series, start_wall, end_wall)
            parts = [series_reader.best(connection, one) for one in asked]
        if len(parts) == 1:
            return parts[0]
        # for a precision that was changed and changed back, in turns
        points = sorted(((t, v) for part in parts for t, v in zip(*part, strict=True)), key=itemgetter(0))
        return [t for t, _ in points], [v for _, v in points]

    def summaries(self, series: SeriesRef, start_wall: float, end_wall: float, step: float) -> list[Bucket]:
        """Return n, min, max, sum and last for each clock-aligned step (seconds) that has values.

        Steps of whole minutes and hours are read from summaries, kept for a year and for ten.
        """
        buckets: list[list[Bucket]] = []
        for one, steps in self._stepped(series, start_wall, end_wall, step):
            buckets.append([Bucket(ms / 1000, n, *unscaled(values, one.divisor)) for ms, (n, *values) in steps])
        return _one_each(buckets)

    def _stepped(
        self, series: SeriesRef, start_wall: float, end_wall: float, step: float
    ) -> list[tuple[Asked, list[tuple[int, Summary]]]]:
        step_ms = max(1, round(step * 1000))
        with self.connected() as connection:
            asked = series_reader.asked_for(connection, series, start_wall, end_wall)
            return [(one, series_reader.summaries(connection, one, step_ms)) for one in asked]

    def latest(self) -> dict[SeriesRef, Point]:
        """Return the last known value of every series still being recorded, each with its own time.

        Values read at least once per minute are the newest; others may be from the last sealed quarter of an hour.
        """
        latest: dict[int, tuple[int, Number]] = {}
        with self.connected() as connection:
            for host in connection.scalars(select(schema.host.c.id)).all():
                latest |= series_reader.last_values(connection, host)
            return {
                row.ref: Point(latest[row.number][0] / 1000, *unscaled(latest[row.number][1:], row.divisor))
                for row in series_reader.listed(connection)
                if row.number in latest
            }

    def processes(self, start_wall: float, end_wall: float) -> list[ProcessPoint]:
        """Return the processes that were recorded between two moments, by time."""

        def point(wall: float, row: list[Any]) -> ProcessPoint:
            pid, start, name, rss, swap = row
            return ProcessPoint(wall, pid, start, name, rss * 1024, swap * 1024)

        return self._processes(start_wall, end_wall, int, point)

    def gpu_processes(self, start_wall: float, end_wall: float) -> list[GpuProcessPoint]:
        def point(wall: float, row: list[Any]) -> GpuProcessPoint:
            uuid, pid, name, used = row
            return GpuProcessPoint(wall, uuid, pid, name, None if used is None else used * 1024)

        return self._processes(start_wall, end_wall, str, point)

    def _processes(
        self, start_wall: float, end_wall: float, first: type[int | str], point: Callable[[float, list[Any]], _P]
    ) -> list[_P]:
        start, end = round(start_wall * 1000), round(end_wall * 1000)
        points: list[_P] = []
        with self.connected() as connection:
            for ms, rows in series_reader.processes(connection, start, end, self._ours):
                with gap("processes at %d", ms):
                    points += [point(ms / 1000, row) for row in rows if isinstance(row[0], first)]
        return sorted(points, key=itemgetter(0))

    def events(self, start_wall: float, end_wall: float, kind: str = "") -> list[Event]:
        """Return the newest events between two moments, of one kind or all, by time."""
        of = schema.event.c
        query = select(schema.event).where(of.ms.between(round(start_wall * 1000), round(end_wall * 1000)))
        if kind:
            query = query.where(of.kind == kind)
        events = []
        for row in self._rows(query.order_by(of.ms.desc(), of.id.desc()).limit(MAX_EVENTS), schema.event):
            with gap("event %d", row.id):
                events.append(Event(row.kind, row.ms / 1000, row.text, safe_files.parsed(row.fields)))
        return events[::-1]

    def deliveries(self, start_wall: float, end_wall: float) -> Iterator[Delivery]:
        """Yield the deliveries of messages put into the outbox between two moments."""
        of = schema.outbox.c
        query = select(schema.outbox).where(of.created_ms.between(round(start_wall * 1000), round(end_wall * 1000)))
        for row in self._rows(query.order_by(of.id), schema.outbox):
            with gap("delivery %d", row.id):
                yield records.delivery_of(row)

    def transitions(self, since_wall: float = 0.0, *, newest: int = MAX_TRANSITIONS) -> list[tuple[int, Transition]]:
        """Return the ``newest`` changes of level since a moment with their ids, by time."""
        of = schema.transition.c
        query = select(schema.transition).where(of.ms >= round(since_wall * 1000))
        return [*self._changes(query.order_by(of.ms.desc(), of.id.desc()).limit(newest))][::-1]

    def changes(
        self,
        since_wall: float = 0.0,
        lasting: Collection[str] = (),
        *,
        brief: bool = False,
        of: tuple[Collection[str], str, int, int] | None = None,
    ) -> Iterator[tuple[int, Transition]]:
        """Yield the changes of level since a moment with their ids, by id, one at a time.

        For ``lasting`` rules also those before it; ``brief``: without forecasts, which are most of the work;
        ``of`` (rules, resource, first and last id): those of one incident.
        """
        table = schema.transition.c
        columns = [null().label(c.name) if brief and c.name == "forecast" else c for c in table]
        query = select(*columns).where(or_(table.ms >= round(since_wall * 1000), table.rule.in_(lasting)))
        if of is not None:
            query = query.where(table.rule.in_(of[0]), table.resource == of[1], table.id.between(*of[2:]))
        yield from self._changes(query.order_by(table.id))

    def _changes(self, query: Select[Any]) -> Iterator[tuple[int, Transition]]:
        for row in self._rows(query, schema.transition):
            with gap("transition %d", row.id):
                yield row.id, records.transition_of(row)

    def stress_runs(
        self, *, brief: bool = False, before: int | None = None, newest: int | None = None
    ) -> list[tuple[int, StressResult]]:
        """Return stress runs with their ids, by time; ``brief``: without the rows behind their figures.

        ``before`` selects lower ids, ``newest`` at most this many of the newest.
        """
        of = schema.stress_run.c
        query = select(of.id, of.document)
        if before is not None:
            query = query.where(of.id < before)
        # Paging is by id.
        query = query.order_by(of.ms, of.id) if newest is None else query.order_by(of.id.desc()).limit(newest)
        runs = [(n, replace(run, detail={}) if brief else run) for n, run in self._stress_runs(query)]
        return runs if newest is None else runs[::-1]

    def stress_run(self, number: int) -> StressResult | None:
        if abs(number) >> 63:  # a person may type any number, but databases take only so many digits
            return None
        of = schema.stress_run.c
        return dict(self._stress_runs(select(of.id, of.document).where(of.id == number))).get(number)

    def _stress_runs(self, query: Select[Any]) -> Iterator[tuple[int, StressResult]]:
        for row in self._rows(query, schema.stress_run, most_buffered=8):
            with gap("stress run %d", row.id):
                yield row.id, records.stress_from_json(safe_files.parsed(row.document))

    def count_stress_runs(self) -> int:
        (row,) = self._rows(select(func.count()).select_from(schema.stress_run), schema.stress_run)
        return int(row[0])

    def _rows(self, query: Select[Any], table: Table, most_buffered: int = 500) -> Iterator[Row[Any]]:
        """Yield the rows of the chosen machine one at a time: an unprivileged user can add thousands per day."""
        options = {"stream_results": True, "max_row_buffer": most_buffered}
        with (
            self.connected() as connection,
            connection.execute(query.where(self._ours(connection, table)), execution_options=options) as rows,
        ):
            yield from rows

    def _ours(self, connection: Connection, table: Table) -> ColumnElement[bool]:
        hosts = {row.name: row.id for row in connection.execute(select(schema.host))}
        # Without other machines, the condition would only mislead the query planner.
        alone = self.path is not None and hosts.keys() <= {self.host}
        if not self.host or alone:
            return true()
        if self.host not in hosts:
            return false()
        return schema.of_host(table, hosts[self.host])


def _one_each(groups: list[list[_T]]) -> list[_T]:
    by_time = {step[0]: step for group in groups for step in group}
    return [by_time[wall] for wall in sorted(by_time)]
