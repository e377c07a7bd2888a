"""Reading history, from this process or another, while the daemon writes."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat
from operator import itemgetter, truediv
from typing import TypeVar, final

from sqlalchemy import ColumnElement, Connection, Engine, Table, false, or_, select, true
from sqlalchemy.exc import DBAPIError

from wslgpud import documents
from wslgpud.event import Event
from wslgpud.metrics import MOST_SERIES_OF_NAMES
from wslgpud.model import Number, StressResult, Transition
from wslgpud.store import engine as engines
from wslgpud.store import foreign, history, migrations, numbers, schema, stress_rows, transition_rows
from wslgpud.store.damage import gap
from wslgpud.store.explain import explained
from wslgpud.store.records import (
    Bucket,
    DeliveryRecord,
    GpuProcessPoint,
    Oldest,
    Point,
    ProcessPoint,
    SeriesRef,
    new_bucket,
    new_point,
)
from wslgpud.store.rollup import Steps
from wslgpud.store.select import matcher
from wslgpud.words import from_text

#: ``latest`` looks back this far, and at no more rows, for series that are read less often than every tick
LATEST_MS = 65_000
LATEST_ROWS = 150
#: series of one metric of one machine that ``series`` lists, and of all; a sound history has fewer
MOST_LISTED_OF_A_METRIC = MOST_SERIES_OF_NAMES
MOST_LISTED = 20_000
#: changes of level that are given as a list; who needs more takes them one at a time
MOST_TRANSITIONS = 1000
#: events that are given; a program that is killed again and again makes thousands an hour
MOST_EVENTS = 5000

_T = TypeVar("_T", Point, Bucket)


@final
class Reader:
    """Connections that only read; usable from several threads."""

    def __init__(self, target: str, host: str = "") -> None:
        """Look into the database at ``target`` (a path or a URL).

        With ``host`` of what has no series (processes, events, incidents, stress runs) only that machine's:
        many may write into one database, and their pids and resources have the same names.

        Raises:
            StoreError: there is none, a newer wslgpud wrote it, or it cannot be read.
        """
        self._target, self._host = target, host
        #: the file, None for a database server
        self.path = engines.sqlite_path(target)
        #: device and inode of the file that is open
        self.identity: tuple[int, int] | None = None
        self._engine: Engine = foreign.reader_engine(target)
        try:
            with self.connected() as connection:
                migrations.refuse_newer(migrations.applied(connection), engines.shown(target))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Reader:
        """Return the open reader."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Let the connections go."""
        self._engine.dispose()

    def check(self) -> list[str]:
        """Look through the whole file; return what is wrong with it, empty when nothing is."""
        if self.path is None:
            return []
        self._follow()
        try:
            with self._engine.begin() as connection:
                rows = connection.exec_driver_sql("PRAGMA quick_check(10)").scalars().all()
        except DBAPIError as error:
            return [str(error.orig)]
        return [row for row in rows if row != "ok"]

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """Lend a connection within a transaction that sees one moment of the database.

        Raises:
            StoreError: the database cannot be read.
        """
        self._follow()
        with explained(self._target), self._engine.begin() as connection:
            yield connection

    def _follow(self) -> None:
        """Turn to the file that has the name now, if the one we knew was replaced."""
        if self.path is None:
            return
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return
        if (found.st_dev, found.st_ino) != self.identity:
            if self.identity is not None:
                self._engine.dispose()
                self._engine = foreign.reader_engine(self._target)
            self.identity = (found.st_dev, found.st_ino)

    def series(self, pattern: str = "*", host: str = "") -> list[SeriesRef]:
        """Return the series that a pattern means (see ``select.matcher``), of one machine if it is named."""
        return sorted(self.kinds(pattern, host))

    def kinds(self, pattern: str = "*", host: str = "") -> dict[SeriesRef, str]:
        """Return such series with the kinds (gauge, counter) of their metrics.

        At most ``MOST_LISTED_OF_A_METRIC`` of each metric and machine, and ``MOST_LISTED`` in all; one that
        is not listed can still be read.
        """
        wanted = matcher(pattern)
        found: dict[SeriesRef, str] = {}
        of_metric: Counter[tuple[str, str]] = Counter()
        with self.connected() as connection:
            # of a pattern the first that match may be any
            most = MOST_LISTED_OF_A_METRIC if pattern == "*" else schema.series_range(0)[1]
            for ref, kind in numbers.listed(connection, host, most):
                if not wanted(ref):
                    continue
                of_metric[ref.host, ref.metric] += 1
                if of_metric[ref.host, ref.metric] <= MOST_LISTED_OF_A_METRIC:
                    found[ref] = kind
                if len(found) >= MOST_LISTED:
                    break
        return found

    def hosts(self) -> list[str]:
        """Return the machines whose history lies here."""
        with self.connected() as connection:
            return list(connection.scalars(select(schema.host.c.name).order_by(schema.host.c.name)))

    def oldest(self) -> Oldest:
        """Return since when there are samples, minutes and hours, of whichever host has them longest."""
        with self.connected() as connection:
            hosts = connection.scalars(select(schema.host.c.id)).all()
            begins = [history.oldest(connection, host) for host in hosts]
        known = ([ms / 1000 for ms in of if ms is not None] for of in zip(*begins, strict=True))
        return Oldest(*(min(walls, default=None) for walls in known))

    def read(
        self, series: SeriesRef, start_wall: float, end_wall: float, step: float | None = None
    ) -> list[Point]:
        """Return the values between two moments (both included), by time.

        With ``step`` (seconds) one point for each clock-aligned step that has values, stamped with its
        beginning: the last value of a counter, the mean of anything else. Gaps stay gaps. So it is without
        ``step`` for times whose samples are not kept any more: then a step is a minute, or an hour.
        """
        if step is not None:
            kind, found = self._stepped(series, start_wall, end_wall, step)
            points: list[list[Point]] = []
            for steps, divisor in found:
                values = history.unscaled(steps.last if kind == "counter" else steps.means, divisor)
                points.append(list(map(new_point, zip(_walls(steps), values, strict=True))))
            return points[0] if len(points) == 1 else _one_each(points)
        times, values = self.columns(series, start_wall, end_wall)
        return list(map(new_point, zip(times, values, strict=True)))

    def columns(
        self, series: SeriesRef, start_wall: float, end_wall: float
    ) -> tuple[list[float], list[Number]]:
        """Return the same as ``read``, as times and values apart, which is quicker for many of them."""
        start, end = round(start_wall * 1000), round(end_wall * 1000)
        with self.connected() as connection:
            parts = [
                history.best(connection, history.Asked(one.number, one.divisor, start, end), kind=one.kind)
                for one in numbers.of(connection, series)
            ]
        if len(parts) == 1:
            return parts[0]
        # of a precision that was changed and changed back, in turns
        points = sorted(((t, v) for part in parts for t, v in zip(*part, strict=True)), key=itemgetter(0))
        return [t for t, _ in points], [v for _, v in points]

    def summaries(self, series: SeriesRef, start_wall: float, end_wall: float, step: float) -> list[Bucket]:
        """Return n, min, max, sum and last for each clock-aligned step (seconds) that has values.

        Steps of whole minutes and hours come from the summaries kept for a year and for ten.
        """
        _, found = self._stepped(series, start_wall, end_wall, step)
        buckets: list[list[Bucket]] = []
        for steps, divisor in found:
            columns = (history.unscaled(column, divisor) for column in steps[2:])
            buckets.append(list(map(new_bucket, zip(_walls(steps), steps.n, *columns, strict=True))))
        return buckets[0] if len(buckets) == 1 else _one_each(buckets)

    def _stepped(
        self, series: SeriesRef, start_wall: float, end_wall: float, step: float
    ) -> tuple[str, list[tuple[Steps, int]]]:
        """Return the series' kind; of each of its ids what is known by step as it is kept, the divisor."""
        start, end = round(start_wall * 1000), round(end_wall * 1000)
        step_ms = max(1, round(step * 1000))
        with self.connected() as connection:
            ids = numbers.of(connection, series)
            found = [
                (
                    history.summaries(connection, history.Asked(number, divisor, start, end), step_ms),
                    divisor,
                )
                for number, _, divisor in ids
            ]
        return ids[0].kind if ids else "", found

    def latest(self) -> dict[SeriesRef, Point]:
        """Return the last known value of every series that is still recorded, each with its own time.

        Those read at least once a minute are the newest; what is read less often may be that of the last
        sealed quarter of an hour.
        """
        table = schema.batch
        found: dict[int, tuple[int, Number]] = {}
        with self.connected() as connection:
            for host in connection.scalars(select(schema.host.c.id)).all():
                low, high = schema.row_range(host)
                mine = table.c.id.between(low, high)
                found |= history.last_values(connection, low, high)
                newest = connection.scalar(
                    select(table.c.ms).where(mine).order_by(table.c.id.desc()).limit(1)
                )
                rows = connection.execute(
                    select(table.c.ms, table.c.offsets, table.c.readings)
                    .where(mine, table.c.ms >= (newest or 0) - LATEST_MS)
                    .order_by(table.c.id.desc())
                    .limit(LATEST_ROWS)
                ).all()
                for ms, offsets, readings in reversed(rows):
                    with gap("ticks from %d on", ms):
                        last = ms + json.loads(offsets)[-1]
                        for key, given in json.loads(readings).items():
                            found[int(key)] = (last, given[-1] if isinstance(given, list) else given)
            series = {number: (ref, divisor) for number, ref, divisor in numbers.refs(connection, [*found])}
        return {
            series[number][0]: Point(ms / 1000, *history.unscaled((value,), series[number][1]))
            for number, (ms, value) in found.items()
            if number in series
        }

    def processes(self, start_wall: float, end_wall: float) -> list[ProcessPoint]:
        """Return the processes that were recorded between two moments, by time."""
        with self.connected() as connection:
            found = [
                ProcessPoint(ms / 1000, pid, start, name, rss * 1024, swap * 1024)
                for ms, rows in history.processes(
                    connection, round(start_wall * 1000), round(end_wall * 1000), self._ours
                )
                for pid, start, name, rss, swap in (row for row in rows if isinstance(row[0], int))
            ]
        return sorted(found, key=lambda p: p.wall)

    def gpu_processes(self, start_wall: float, end_wall: float) -> list[GpuProcessPoint]:
        """Return the programs that used a GPU between two moments, by time."""
        with self.connected() as connection:
            found = [
                GpuProcessPoint(ms / 1000, uuid, pid, name, None if used is None else used * 1024)
                for ms, rows in history.processes(
                    connection, round(start_wall * 1000), round(end_wall * 1000), self._ours
                )
                for uuid, pid, name, used in (row for row in rows if isinstance(row[0], str))
            ]
        return sorted(found, key=lambda p: p.wall)

    def events(self, start_wall: float, end_wall: float, kind: str = "") -> list[Event]:
        """Return the newest of what happened between two moments, of one kind or all, by time."""
        table = schema.event
        query = (
            select(table)
            .where(table.c.ms.between(round(start_wall * 1000), round(end_wall * 1000)))
            .order_by(table.c.ms.desc(), table.c.id.desc())
            .limit(MOST_EVENTS)
        )
        if kind:
            query = query.where(table.c.kind == kind)
        with self.connected() as connection:
            rows = connection.execute(query.where(self._ours(connection, table))).all()
        found = []
        for row in rows:
            with gap("event %d", row.id):
                found.append(Event(row.kind, row.ms / 1000, row.text, documents.parsed(row.fields)))
        return found[::-1]

    def deliveries(self, start_wall: float, end_wall: float) -> Iterator[DeliveryRecord]:
        """Yield how it went with the messages that were put into the outbox between two moments."""
        of = schema.outbox.c
        query = select(of.channel, of.transition, of.created_ms, of.done_ms, of.attempts, of.error)
        query = query.where(of.created_ms.between(round(start_wall * 1000), round(end_wall * 1000)))
        query = query.execution_options(stream_results=True, max_row_buffer=500).order_by(of.id)
        with self.connected() as connection:
            for row in connection.execute(query.where(self._ours(connection, schema.outbox))):
                done = None if row.done_ms is None else row.done_ms / 1000
                made, error = row.created_ms / 1000, from_text(row.error)
                yield DeliveryRecord(row.channel, row.transition, made, done, row.attempts, error)

    def transitions(
        self, since_wall: float = 0.0, until_wall: float = math.inf, *, newest: int = MOST_TRANSITIONS
    ) -> list[tuple[int, Transition]]:
        """Return the ``newest`` changes of level between two moments with their ids, by time."""
        of = schema.transition.c
        wanted = [of.ms >= round(since_wall * 1000)]
        if until_wall < math.inf:
            wanted.append(of.ms <= round(until_wall * 1000))
        with self.connected() as connection:
            query = transition_rows.query(connection, self._ours).where(*wanted)
            query = query.order_by(of.ms.desc(), of.id.desc()).limit(newest)
            return [*transition_rows.read(connection, query)][::-1]

    def changes(
        self,
        since_wall: float = 0.0,
        lasting: Collection[str] = (),
        *,
        brief: bool = False,
        of: tuple[Collection[str], str, int, int] | None = None,
    ) -> Iterator[tuple[int, Transition]]:
        """Yield the changes of level since a moment with their ids, by id, one at a time.

        Args:
            since_wall: the moment.
            lasting: rules of which those before it are wanted, too.
            brief: leave out the forecasts and what the rules saw, which is most of the work.
            of: rules, resource, first and last id: those of one incident.
        """
        table = schema.transition.c
        wanted = [or_(table.ms >= round(since_wall * 1000), table.rule.in_(lasting))]
        if of is not None:
            wanted += [table.rule.in_(of[0]), table.resource == of[1], table.id.between(*of[2:])]
        with self.connected() as connection:
            query = transition_rows.query(connection, self._ours, brief=brief)
            yield from transition_rows.read(connection, query.where(*wanted).order_by(table.id))

    def changes_numbered(self, numbers_: Collection[int]) -> dict[int, Transition]:
        """Return these changes of level by their ids; at most 500 at a time."""
        with self.connected() as connection:
            query = transition_rows.query(connection, self._ours)
            return dict(
                transition_rows.read(connection, query.where(schema.transition.c.id.in_([*numbers_][:500])))
            )

    def stress_runs(
        self,
        since_wall: float = 0.0,
        *,
        brief: bool = False,
        before: int | None = None,
        newest: int | None = None,
    ) -> list[tuple[int, StressResult]]:
        """Return stress runs since a moment with their ids, by time; of an older database none.

        Args:
            since_wall: the moment.
            brief: leave out the rows behind their figures.
            before: only those with lower ids.
            newest: no more than so many, the newest.
        """
        with self.connected() as connection:
            return stress_rows.select(
                connection, since_wall, self._ours, brief=brief, before=before, newest=newest
            )

    def stress_run(self, number: int) -> StressResult | None:
        """Return one stress run; None when there is none of that id."""
        with self.connected() as connection:
            found = stress_rows.select(connection, 0.0, self._ours, before=number + 1, least=number)
        return found[0][1] if found else None

    def count_stress_runs(self) -> int:
        """Return how many stress runs are kept."""
        with self.connected() as connection:
            return stress_rows.count(connection, self._ours)

    def _ours(self, connection: Connection, table: Table) -> ColumnElement[bool]:
        """Return what is true of a table's rows that are the chosen machine's."""
        hosts = {row.name: row.id for row in connection.execute(select(schema.host))}
        # Where there is no other the condition would only mislead who chooses an index.
        alone = connection.dialect.name == "sqlite" and hosts.keys() <= {self._host}
        if not self._host or alone:
            return true()
        if self._host not in hosts:
            return false()
        column, (low, high) = schema.key_range(table, hosts[self._host])
        return column.between(low, high)


def _walls(steps: Steps) -> Iterable[float]:
    return map(truediv, steps.times, repeat(1000))


def _one_each(found: Iterable[list[_T]]) -> list[_T]:
    """Return all by time; of a step in which the precision was changed, the newer series counts."""
    by_time = {step[0]: step for some in found for step in some}
    return [by_time[wall] for wall in sorted(by_time)]
