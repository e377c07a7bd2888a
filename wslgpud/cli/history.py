"""``wslgpud history`` and ``wslgpud export``: recorded series as a plot, a table, or for programs."""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.table import Table
from rich.text import Text

from wslgpud.app.catalogue import catalogue
from wslgpud.cli import common, completion
from wslgpud.cli.chart import chart
from wslgpud.cli.common import Fault, argument, database_of, flag, moment, option, picture, seconds, span, warn, writing
from wslgpud.cli.console import Console, bar, table_of
from wslgpud.cli.series import WORDS, amount, find, unit_of
from wslgpud.colors import TERMINAL_LINES
from wslgpud.security import safe_files
from wslgpud.series import export as exports
from wslgpud.series.curves import Curve, curve, joined, step_for
from wslgpud.series.export import Piece, Wanted
from wslgpud.series.plots import plot_curves
from wslgpud.store import Reader, SeriesRef
from wslgpud.words import MessageError, cause, t, template

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
            completion.metric,
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
        series_kinds = find(reader, series or (), host)
        if not series:
            _list(reader, series_kinds, as_json=as_json)
            return
        wanted = Wanted(reader, series_kinds, start, end, width)
        if as_csv or as_json or parquet is not None:
            _print(wanted, across, rate=bool(rate), csv=as_csv, file=parquet)
        else:
            _draw(wanted, across, rate=rate is not False, file=file)


def _list(reader: Reader, series_kinds: Mapping[SeriesRef, str], *, as_json: bool) -> None:
    latest, rows = reader.latest(), []
    for ref, kind in sorted(series_kinds.items()):
        row: dict[str, Any] = {"series": str(ref), "kind": kind, "unit": unit_of(ref.metric), "host": ref.host}
        if ref in latest:
            row |= {"value": latest[ref].value, "at": common.iso(latest[ref].wall)}
        rows.append((ref, row))
    if as_json:
        common.print_json([row for _, row in rows])
    else:
        _print_list(rows)


def _print(wanted: Wanted, across: str | None, *, rate: bool, csv: bool, file: Path | None) -> None:
    """Print values for programs: every sample, or in steps."""
    pieces = wanted.pieces()
    if across or rate:
        if wanted.step_seconds is None:
            raise Fault("--across and --rate need --step: samples of different series have different times")
        curves = _curves(wanted, wanted.step_seconds, across, rate=rate)
        pieces = iter([[Piece(c.ref, [p[0] for p in c.points], [p[2] for p in c.points]) for c in curves]])
    try:
        if csv:
            exports.wide_csv(pieces, sys.stdout)
        elif file is not None:
            with safe_files.draft(file) as draft:
                exports.parquet(pieces, wanted.series, catalogue(), draft)
        else:
            _print_json(pieces, wanted)
    except OSError as error:
        raise MessageError(cause(error)) from error


def _print_json(pieces: Iterable[Sequence[Piece]], wanted: Wanted) -> None:
    points_by_series: dict[SeriesRef, list[list[float]]] = {}
    for piece in itertools.chain.from_iterable(pieces):
        points_by_series.setdefault(piece.ref, []).extend(map(list, zip(piece.times, piece.values, strict=True)))
    series = []
    for ref, points in points_by_series.items():
        about = {"series": str(ref), "metric": ref.metric, "labels": dict(ref.labels), "host": ref.host}
        series.append({**about, "unit": unit_of(ref.metric), "points": points})
    since, until = map(common.iso, (wanted.start_wall, wanted.end_wall))
    print(json.dumps({"since": since, "until": until, "step_seconds": wanted.step_seconds, "series": series}))


def _curves(wanted: Wanted, step: float, across: str | None, *, rate: bool) -> list[Curve]:
    """Read the series in steps; ``across`` combines all series of a metric."""
    by_metric: dict[str, list[Curve]] = {}
    walls = wanted.start_wall, wanted.end_wall
    for ref, kind in wanted.series.items():
        one = curve(wanted.reader, ref, walls, step, unit_of(ref.metric), rate=rate and kind == "counter")
        if one.points:
            by_metric.setdefault(ref.metric, []).append(one)
    return [one for curves in by_metric.values() for one in ([joined(curves, across)] if across else curves)]


def _draw(wanted: Wanted, across: str | None, *, rate: bool, file: Path | None) -> None:
    points = max(40, (Console().picture_width - _MARGIN) * 2) if file is None else _PICTURE_POINTS
    start, end = wanted.start_wall, wanted.end_wall
    step = wanted.step_seconds or step_for(end - start, points)
    curves = _curves(wanted, step, across, rate=rate)
    if not curves:
        raise Fault("none of that was recorded between {start_wall} and {end_wall}", start_wall=start, end_wall=end)
    if file is None:
        _print_curves(curves, start, end, step)
        _say_tiers(wanted.reader, start, step)
    else:
        plot_curves([(short(c.ref), c.unit + "/s" * c.rate, c.points) for c in curves], step, file)


def _say_tiers(reader: Reader, start: float, step: float) -> None:
    """Report where a plot is coarser than requested, because the samples are no longer kept."""
    oldest = reader.oldest()
    raw = template("samples are kept since {kept_wall}; before that it is coarser")
    minutes = template("minutes are kept since {kept_wall}; before that it is coarser")
    for message, since, coarser, width in (
        (raw, oldest.raw_wall, oldest.minute_wall, 60),
        (minutes, oldest.minute_wall, oldest.hour_wall, 3600),
    ):
        if since is not None and coarser is not None and step < width and start < since and coarser < since - width:
            warn(message, kept_wall=since)


def _print_list(rows: Sequence[tuple[SeriesRef, Mapping[str, Any]]]) -> None:
    """Print each metric once, with the last values of its series."""
    console = Console(soft_wrap=False)
    words = {metric: word for word, metrics in WORDS.items() for metric in metrics}
    several = len({ref.host for ref, _ in rows}) > 1
    table = table_of("~" + t("series"), "<" + t("unit"), ">" + t("last value"), "<", *["<" + t("host")] * several)
    table.columns[3].style = "dim"
    for ref, row in rows:
        metric, brace, labels = short(ref).partition("{")
        name = Text.assemble(
            metric, (brace + labels, "dim"), (f"  {words[metric]}" if metric in words else "", "green")
        )
        unit = t("{unit} total", unit=row["unit"]) if row["kind"] == "counter" else row["unit"]
        table.add_row(name, unit, *_last(row), *[row["host"]] * several)
    console.print(table)
    console.print(Text(t("\n{count} series; the short names of some stand beside them in green.", count=len(rows))))


def _last(row: Mapping[str, Any]) -> tuple[str, str]:
    if "value" not in row:
        return "", t("not recently")
    age = time.time() - datetime.fromisoformat(row["at"]).timestamp()
    return amount(row["value"], row["unit"]), t("{age_seconds} ago", age_seconds=age) if age > _FRESH_SECONDS else ""


def _print_curves(curves: Sequence[Curve], start: float, end: float, step: float) -> None:
    """Print a plot for each unit, each with a table of its curves."""
    console = Console()
    kinds = list(dict.fromkeys((c.unit, c.rate) for c in curves))
    for unit, rate in kinds:
        of_kind = sorted(
            (c for c in curves if (c.unit, c.rate) == (unit, rate)), key=lambda c: -max(p[3] for p in c.points)
        )
        drawn = of_kind[: len(TERMINAL_LINES)]
        write = partial(amount, unit=unit, rate=rate)
        height = 12 if len(kinds) == 1 else 8
        for line in chart(drawn, start, end, step, write, width=console.picture_width, height=height):
            console.print(line)
        console.print(legend(of_kind, write))
        if len(of_kind) > len(drawn):
            remark = t("only the {count} highest are drawn; narrow it by a pattern or --across", count=len(drawn))
            console.print(remark, style="dim")
        console.print()


def legend(curves: Sequence[Curve], write: Any) -> Table:
    """Return a table of curves with their figures, in the colours of the curves."""
    table = table_of("<", "~" + t("series"), *(">" + one for one in (t("min"), t("mean"), t("max"), t("last"))))
    hosts = len({c.ref.host for c in curves}) > 1
    for number, one in enumerate(curves):
        means = [p[2] for p in one.points]
        lowest, highest = min(p[1] for p in one.points), max(p[3] for p in one.points)
        line = Text("━━", TERMINAL_LINES[number]) if number < len(TERMINAL_LINES) else ""
        figures = (write(value) for value in (lowest, sum(means) / len(means), highest, means[-1]))
        table.add_row(line, f"{one.ref.host}: " * hosts + short(one.ref), *figures)
    return table


def short(ref: SeriesRef) -> str:
    """Return a series' name without the UUID: a card's index is enough."""
    return str(ref._replace(labels=tuple((k, v) for k, v in ref.labels if k != "uuid")))


_SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".om": "openmetrics"}


def export(
    file: Annotated[Path, argument("FILE", "file to write; - for standard output")],
    series: Annotated[
        list[str] | None, argument("SERIES", "as for history; all series by default", completion.metric)
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
        series_kinds = find(reader, series or (), host)
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
            _write(wanted, chosen, path, extra)
    if not piped:
        written, count = file.stat().st_size, len(series_kinds)
        print(t("{file}: {size_bytes}, {count} series", file=str(file), size_bytes=written, count=count))


def _write(wanted: Wanted, form: str, path: Path | None, extra: dict[str, str]) -> None:
    """Write to ``path``, else to standard output."""
    if form == "parquet":
        if path is None:
            raise Fault("Parquet needs a file: it cannot be written to a pipe")
        exports.parquet(wanted.pieces(), wanted.series, catalogue(), path)
        return
    with path.open("w", encoding="utf-8") if path is not None else nullcontext(sys.stdout) as out:
        if form == "csv":
            exports.long_csv(wanted, out)
        else:
            exports.openmetrics(wanted, out, catalogue(), extra)


def _label(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"([a-zA-Z_][a-zA-Z0-9_]*)=(.*)", text)
    if match is None:
        raise Fault("{text} is not a label: write name=value", text=repr(text))
    return match[1], match[2].strip('"')
