"""``wslgpud history`` and ``wslgpud export``: recorded series as a plot, a table, or for programs."""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.text import Text

from wslgpud.app.catalogue import catalogue
from wslgpud.cli import common
from wslgpud.cli.chart import print_curves, short
from wslgpud.cli.common import Fault, argument, database_of, flag, option, picture, warn, writing
from wslgpud.cli.console import Console, bar, table_of
from wslgpud.security import safe_files
from wslgpud.series import export as exports
from wslgpud.series.curves import WORDS, find, step_for
from wslgpud.series.export import Piece, Wanted
from wslgpud.series.plots import plot_curves
from wslgpud.store import Reader, SeriesRef
from wslgpud.store.records import Point
from wslgpud.words import MessageError, cause, t
from wslgpud.words.moments import moment, seconds, span
from wslgpud.words.units import amount

#: values along a plot, and the columns of a terminal taken by the labels of an axis
_PICTURE_POINTS, _MARGIN = 700, 14
#: values older than this show their age
_FRESH_SECONDS = 90.0


def history(
    series: Annotated[
        list[str] | None,
        argument(
            "SERIES",
            "ram, vram, gpu, temperature, ...; a metric; a pattern: 'gpu_*', 'gpu_clock_hertz{gpu=0}'."
            " Without any: list all that there are",
            common.complete_metric,
        ),
    ] = None,
    since: common.Since = "24h",
    until: common.Until = "now",
    step: common.Step = "",
    across: Annotated[
        Literal["sum", "mean", "max", "min"] | None,
        option("--across", "sum|mean|max|min", "all series of a metric as one"),
    ] = None,
    rate: Annotated[bool | None, flag("--rate/--no-rate", "counters as increase per second (as plots do)")] = None,
    plot: common.Plot = None,
    as_csv: Annotated[bool, flag("--csv", "one row per moment, one column per series")] = False,
    as_json: common.Json = False,
    parquet: Annotated[Path | None, option("--parquet", "FILE", "write this Parquet file (needs pyarrow)")] = None,
    host: common.HostName = "",
    config: common.Config = None,
    state: common.State = None,
) -> None:
    """Show recorded metrics: drawn on the terminal, as PNG, SVG, CSV, JSON or Parquet.

    Examples:
        wslgpud history  # everything recorded, with the last values
        wslgpud history ram vram --since 8h  # drawn on this terminal
        wslgpud history ram --since yesterday --until 14:00 --plot ram.png
        wslgpud history vram --across sum --since 30d --step 1h --csv
    """
    forms = [plot is not None, as_csv, parquet is not None]
    if sum((*forms, as_json)) > 1:
        raise Fault("--plot, --csv, --json and --parquet exclude each other")
    if not series and any(forms):
        raise Fault("--plot, --csv and --parquet need a series, such as ram; 'wslgpud history' lists them all")
    file = picture(plot)
    now = time.time()
    start, end = span(since, until, now)
    width = seconds(step) if step else None
    with Reader(database_of(config, state)) as reader:
        series_kinds = find(reader, series or (), host, warn)
        if not series:
            latest = reader.latest()
            if as_json:
                common.print_json([_described(ref, series_kinds[ref], latest.get(ref)) for ref in sorted(series_kinds)])
            else:
                _print_list(series_kinds, latest)
            return
        wanted = Wanted(reader, series_kinds, start, end, width)
        if as_csv or as_json or parquet is not None:
            _print(wanted, across, rate=bool(rate), csv=as_csv, file=parquet)
        else:
            _draw(wanted, across, rate=rate is not False, file=file)


def _print(wanted: Wanted, across: str | None, *, rate: bool, csv: bool, file: Path | None) -> None:
    """Print values for programs: every sample, or in steps."""
    pieces = wanted.pieces()
    if across or rate:
        if wanted.step_seconds is None:
            raise Fault("--across and --rate need --step: samples of different series have different times")
        curves = exports.curves(wanted, wanted.step_seconds, unit_of, across, rate=rate)
        pieces = iter([[Piece(c.ref, [p[0] for p in c.points], [p[2] for p in c.points]) for c in curves]])
    try:
        if csv:
            exports.wide_csv(pieces, sys.stdout)
        elif file is not None:
            with safe_files.draft(file) as draft:
                exports.parquet(pieces, wanted.series, catalogue(), draft)
        else:
            since, until = map(common.iso, (wanted.start_wall, wanted.end_wall))
            listed = exports.listed(pieces, unit_of)
            print(json.dumps({"since": since, "until": until, "step_seconds": wanted.step_seconds, "series": listed}))
    except OSError as error:
        raise MessageError(cause(error)) from error


def _draw(wanted: Wanted, across: str | None, *, rate: bool, file: Path | None) -> None:
    points = max(40, (Console().picture_width - _MARGIN) * 2) if file is None else _PICTURE_POINTS
    start, end = wanted.start_wall, wanted.end_wall
    step = wanted.step_seconds or step_for(end - start, points)
    curves = exports.curves(wanted, step, unit_of, across, rate=rate)
    if not curves:
        raise Fault("none of that was recorded between {start_wall} and {end_wall}", start_wall=start, end_wall=end)
    if file is None:
        print_curves(curves, (start, end), step)
        for message in exports.coarser(wanted.reader.oldest(), start, step):
            warn(message)
    else:
        plot_curves([(short(c.ref), c.unit + "/s" * c.rate, c.points) for c in curves], step, file)


def _print_list(series_kinds: Mapping[SeriesRef, str], latest: Mapping[SeriesRef, Point]) -> None:
    """Print each metric once, with the last values of its series."""
    console = Console(soft_wrap=False)
    words = {metric: f"  {word}" for word, metrics in WORDS.items() for metric in metrics}
    several = len({ref.host for ref in series_kinds}) > 1
    table = table_of("~" + t("series"), "<" + t("unit"), ">" + t("last value"), "<", *["<" + t("host")] * several)
    table.columns[3].style = "dim"
    for ref, kind in sorted(series_kinds.items()):
        (metric, brace, labels), unit = short(ref).partition("{"), unit_of(ref.metric)
        name = Text.assemble(metric, (brace + labels, "dim"), (words.get(metric, ""), "green"))
        total = t("{unit} total", unit=unit) if kind == "counter" else unit
        table.add_row(name, total, *_last(latest.get(ref), unit), *[ref.host] * several)
    console.print(table)
    count = len(series_kinds)
    console.print(Text(t("\n{count} series; the short names of some stand beside them in green.", count=count)))


def _last(point: Point | None, unit: str) -> tuple[str, str]:
    if point is None:
        return "", t("not recently")
    age = time.time() - point.wall
    return amount(point.value, unit), t("{age_seconds} ago", age_seconds=age) if age > _FRESH_SECONDS else ""


def _described(ref: SeriesRef, kind: str, last: Point | None) -> dict[str, Any]:
    known = {} if last is None else {"value": last.value, "at": common.iso(last.wall)}
    return {"series": str(ref), "kind": kind, "unit": unit_of(ref.metric), "host": ref.host, **known}


def unit_of(metric: str) -> str:
    """Return the unit of a metric, empty without one or for an unknown metric."""
    spec = catalogue().find(metric)
    return "" if spec is None else spec.unit


_SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".om": "openmetrics"}


def export(
    file: Annotated[Path, argument("FILE", "file to write; - for standard output")],
    series: Annotated[
        list[str] | None, argument("SERIES", "as for history; all series by default", common.complete_metric)
    ] = None,
    form: Annotated[
        Literal["openmetrics", "csv", "parquet"] | None,
        option("--format", "openmetrics|csv|parquet", "format; by default that of the file's suffix"),
    ] = None,
    since: common.Since = "",
    until: common.Until = "now",
    step: common.Step = "",
    label: Annotated[
        list[str] | None, option("--label", "NAME=VALUE", "label for all series in OpenMetrics, such as job=wslgpud")
    ] = None,
    force: common.Force = False,
    host: common.HostName = "",
    config: common.Config = None,
    state: common.State = None,
) -> None:
    """Export the history as OpenMetrics (for promtool), CSV or Parquet.

    Examples:
        wslgpud export last-week.csv ram vram --since 7d
        wslgpud export history.parquet --step 1min  # one row per minute, for pandas
        wslgpud export history.om --label job=wslgpud  # then: promtool tsdb create-blocks-from openmetrics
    """
    piped, chosen, now = str(file) == "-", form or _SUFFIXES.get(file.suffix), time.time()
    if chosen is None:
        raise Fault("{file}: name it .om (OpenMetrics), .csv or .parquet, or say --format", file=str(file))
    extra = dict(_label(text) for text in label or ())
    with writing(file), Reader(database_of(config, state)) as reader, bar(t("exporting"), silent=piped) as shown:
        series_kinds = find(reader, series or (), host, warn)
        begins = [wall for wall in reader.oldest() if wall is not None]
        start = max(moment(since, now) if since else 0.0, min(begins, default=now))
        end = moment(until, now)
        if start > end:
            raise Fault("there is no history before {when}", when=until)
        done = itertools.count(1)
        steps = seconds(step) if step else None
        wanted = Wanted(reader, series_kinds, start, end, steps, lambda: shown(next(done), wanted.size))
        if not piped and file.exists() and not force:
            raise Fault("{file} exists already; it is left as it is (--force replaces it)", file=str(file))
        with nullcontext() if piped else safe_files.draft(file) as path:
            exports.write(wanted, chosen, path, catalogue(), extra)
    if not piped:
        written, count = file.stat().st_size, len(series_kinds)
        print(t("{file}: {size_bytes}, {count} series", file=str(file), size_bytes=written, count=count))


def _label(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"([a-zA-Z_][a-zA-Z0-9_]*)=(.*)", text)
    if match is None:
        raise Fault("{text} is not a label: write name=value", text=repr(text))
    return match[1], match[2].strip('"')
