"""Export of the history: OpenMetrics for Prometheus, CSV, Parquet; window by window, in bounded memory."""

from __future__ import annotations

import csv
import functools
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any, NamedTuple

from wslgpud import optional_packages
from wslgpud.metrics import PREFIX, Catalogue
from wslgpud.model import Number
from wslgpud.series.curves import RATE, Curve, curve, escaped, joined, name_of
from wslgpud.store import Reader, SeriesRef
from wslgpud.store.records import Oldest
from wslgpud.words import Message, MessageError, say, template

DAY_SECONDS = 86400.0
#: steps of one series in memory at a time, if exported in steps
WINDOW_STEPS = 20_000
#: rows per group in a Parquet file
ROW_GROUP = 500_000


class Piece(NamedTuple):
    """Values of one series within one window, by time; times are seconds since the epoch."""

    ref: SeriesRef
    times: Sequence[float]
    values: Sequence[Number]


@dataclass(frozen=True)
class Wanted:
    """Series between two moments; ``step_seconds`` of None means every sample.

    ``progress`` is called ``size`` times.
    """

    reader: Reader
    series: Mapping[SeriesRef, str]
    start_wall: float
    end_wall: float
    step_seconds: float | None = None
    progress: Callable[[], None] = lambda: None

    @property
    def windows(self) -> list[tuple[float, float]]:
        """Windows of time (both ends included) that are read at a time, aligned to the step."""
        width = DAY_SECONDS if self.step_seconds is None else self.step_seconds * WINDOW_STEPS
        edges = [self.start_wall]
        while (edge := (math.floor(edges[-1] / width) + 1) * width) < self.end_wall:
            edges.append(edge)
        # times are whole milliseconds
        return list(zip(edges, [*(edge - 0.001 for edge in edges[1:]), self.end_wall], strict=True))

    @property
    def size(self) -> int:
        return len(self.windows) * len(self.series)

    def pieces(self) -> Iterator[list[Piece]]:
        for window in self.windows:
            yield [self.piece(ref, window) for ref in self.series]

    def piece(self, ref: SeriesRef, window: tuple[float, float]) -> Piece:
        """Read one series within one window; among several values at the same time, the last one counts."""
        if self.step_seconds is None:
            times, values = self.reader.columns(ref, *window)
            if len(set(times)) < len(times):
                times, values = map(list, zip(*dict(zip(times, values, strict=True)).items(), strict=True))
            piece = Piece(ref, times, values)
        else:
            points = self.reader.read(ref, *window, self.step_seconds)
            piece = Piece(ref, [p.wall for p in points], [p.value for p in points])
        self.progress()
        return piece


def curves(
    wanted: Wanted, step_seconds: float, unit_of: Callable[[str], str], across: str | None = None, *, rate: bool
) -> list[Curve]:
    """Read the series in steps; ``across`` combines all series of a metric, ``rate`` gives the increase of counters."""
    by_metric: dict[str, list[Curve]] = {}
    walls = wanted.start_wall, wanted.end_wall
    for ref, kind in wanted.series.items():
        one = curve(wanted.reader, ref, walls, step_seconds, unit_of(ref.metric), rate=rate and kind == "counter")
        if one.points:
            by_metric.setdefault(ref.metric, []).append(one)
    return [one for curves in by_metric.values() for one in ([joined(curves, across)] if across else curves)]


def unit_of(catalogue: Catalogue, metric: str) -> str:
    """Return the unit of a metric or of its rate; empty: it has none, or is unknown."""
    spec = catalogue.find(metric.removesuffix(RATE))
    return "" if spec is None else spec.unit + "/s" * metric.endswith(RATE)


def coarser(oldest: Oldest, start_wall: float, step_seconds: float) -> Iterator[Message]:
    """Yield where series in these steps are coarser, because what they are made of is no longer kept."""
    raw = template("samples are kept since {kept_wall}; before that it is coarser")
    minutes = template("minutes are kept since {kept_wall}; before that it is coarser")
    for text, since, older, width in (
        (raw, oldest.raw_wall, oldest.minute_wall, 60),
        (minutes, oldest.minute_wall, oldest.hour_wall, 3600),
    ):
        if since is None or older is None:
            continue
        if step_seconds < width and start_wall < since and older < since - width:
            yield Message(text, {"kept_wall": since})


def listed(pieces: Iterable[Sequence[Piece]], unit_of: Callable[[str], str]) -> list[dict[str, Any]]:
    """Return each series with all its points, for JSON."""
    points: dict[SeriesRef, list[list[float]]] = {}
    for piece in itertools.chain.from_iterable(pieces):
        points.setdefault(piece.ref, []).extend(map(list, zip(piece.times, piece.values, strict=True)))
    return [
        {
            "series": str(ref),
            "metric": ref.metric,
            "labels": dict(ref.labels),
            "host": ref.host,
            "unit": unit_of(ref.metric),
            "points": its_points,
        }
        for ref, its_points in points.items()
    ]


def write(wanted: Wanted, form: str, path: Path | None, catalogue: Catalogue, extra: Mapping[str, str]) -> None:
    """Write ``openmetrics``, ``csv`` or ``parquet`` to ``path``, else to standard output. Raises MessageError."""
    if form == "parquet":
        if path is None:
            raise MessageError(say("Parquet needs a file: it cannot be written to a pipe"))
        parquet(wanted.pieces(), wanted.series, catalogue, path)
        return
    with path.open("w", encoding="utf-8") if path is not None else nullcontext(sys.stdout) as out:
        if form == "csv":
            long_csv(wanted, out)
        else:
            openmetrics(wanted, out, catalogue, extra)


def openmetrics(wanted: Wanted, out: IO[str], catalogue: Catalogue, extra: Mapping[str, str]) -> None:
    """Write input for ``promtool tsdb create-blocks-from openmetrics``: each family with all its samples.

    ``extra`` labels are added to every series, such as the job and instance of its scrape.
    https://prometheus.io/docs/specs/om/open_metrics_spec/
    """
    families: dict[str, list[SeriesRef]] = {}
    for ref in wanted.series:
        families.setdefault(ref.metric, []).append(ref)
    several = len({ref.host for ref in wanted.series}) > 1
    for metric, refs in families.items():
        kind, spec = wanted.series[refs[0]], catalogue.find(metric)
        out.write(f"# TYPE {PREFIX}{metric} {kind}\n")
        if spec is not None:
            if spec.unit:
                out.write(f"# UNIT {PREFIX}{metric} {spec.unit}\n")
            out.write(f"# HELP {PREFIX}{metric} {escaped(spec.help)}\n")
        for ref in refs:
            labels = {**extra, **({"host": ref.host} if several else {}), **dict(ref.labels)}
            name = name_of(sample_name(metric, kind), labels.items())
            for window in wanted.windows:
                _, times, values = wanted.piece(ref, window)
                out.writelines(f"{name} {value} {time:.3f}\n" for time, value in zip(times, values, strict=True))
    out.write("# EOF\n")


def sample_name(metric: str, kind: str) -> str:
    """Return Prometheus' name of a metric's samples."""
    return f"{PREFIX}{metric}{'_total' if kind == 'counter' else ''}"


def long_csv(wanted: Wanted, out: IO[str]) -> None:
    """Write one line per value (time, host, metric, labels, value), day by day, and by series within a day."""
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["time", "host", "metric", "labels", "value"])
    for pieces in wanted.pieces():
        for ref, times, values in pieces:
            name = sample_name(ref.metric, wanted.series[ref])
            labels = json.dumps(dict(ref.labels)) if ref.labels else ""
            rows.writerows(
                (stamp(time), cell(ref.host), name, labels, value) for time, value in zip(times, values, strict=True)
            )


def cell(text: str) -> str:
    """Return text that a spreadsheet shows literally: a name like ``=cmd()`` would run as a formula.

    See https://owasp.org/www-community/attacks/CSV_Injection.
    """
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else text


def wide_csv(pieces: Iterable[Sequence[Piece]], out: IO[str]) -> None:
    """Write one line per time with a column per series; unknown values stay empty."""
    rows = csv.writer(out, lineterminator="\n")
    for number, window in enumerate(pieces):
        if not number:
            several = len({piece.ref.host for piece in window}) > 1
            names = (f"{p.ref.host}: {p.ref}" if several else str(p.ref) for p in window)
            rows.writerow(["time", *map(cell, names)])
        known: dict[float, list[Number | str]] = {}
        for column, piece in enumerate(window):
            for time, value in zip(piece.times, piece.values, strict=True):
                known.setdefault(time, [""] * len(window))[column] = value
        rows.writerows([stamp(time), *known[time]] for time in sorted(known))


@functools.lru_cache(maxsize=100_000)
def stamp(time: float) -> str:
    """Return a time as text; cached, as most series share theirs."""
    return datetime.fromtimestamp(time, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parquet(
    pieces: Iterable[Sequence[Piece]], kinds: Mapping[SeriesRef, str], catalogue: Catalogue, path: Path
) -> None:
    """Write one row per value (time, host, metric, labels, unit, value) as Parquet.

    Raises MessageError: pyarrow is missing.
    """
    try:
        import pyarrow as pa  # 40 MB, needed only here
        from pyarrow import parquet as files
    except ImportError as error:
        raise MessageError("Parquet needs pyarrow: {remedy}", remedy=optional_packages.remedy("parquet")) from error
    words = pa.dictionary(pa.int32(), pa.string())
    times = pa.timestamp("ms", tz="UTC")
    texts = [(name, words) for name in ("host", "metric", "labels", "unit")]
    schema = pa.schema([("time", times), *texts, ("value", pa.float64())])

    def table(piece: Piece) -> Any:
        ref, count = piece.ref, len(piece.times)
        name, unit = sample_name(ref.metric, kinds.get(ref, "gauge")), unit_of(catalogue, ref.metric)
        same = pa.array([0] * count, pa.int32())
        columns = [
            pa.DictionaryArray.from_arrays(same, pa.array([text]))
            for text in (ref.host, name, json.dumps(dict(ref.labels)), unit)
        ]
        when = pa.array([round(time * 1000) for time in piece.times], times)
        return pa.table([when, *columns, pa.array(map(float, piece.values), pa.float64())], schema=schema)

    with files.ParquetWriter(path, schema, compression="zstd") as writer:
        for window in pieces:
            held: list[Any] = []
            for number, piece in enumerate(window, start=1):
                held.append(table(piece))
                if number == len(window) or sum(map(len, held)) >= ROW_GROUP:
                    writer.write_table(pa.concat_tables(held).unify_dictionaries())
                    held = []
