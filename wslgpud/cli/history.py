"""``wslgpud history``, ``export`` and ``db``: what is recorded, drawn or for programs, and the database itself."""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.text import Text

from wslgpud.app.catalogue import catalogue
from wslgpud.cli import common
from wslgpud.cli.chart import print_curves, short
from wslgpud.cli.commands import CommandGroup
from wslgpud.cli.common import Fault, argument, database_of, flag, loaded, option, picture, warn, writing
from wslgpud.cli.console import Console, bar, pairs, table_of
from wslgpud.security import safe_files
from wslgpud.series import export as exports
from wslgpud.series.curves import WORDS, find, step_for
from wslgpud.series.export import Piece, Wanted
from wslgpud.series.plots import plot_curves
from wslgpud.store import Reader, SeriesRef, maintenance, shown
from wslgpud.store.records import Point
from wslgpud.words import MessageError, cause, current, t
from wslgpud.words.moments import moment, seconds, span
from wslgpud.words.units import amount, size

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
    rows: list[tuple[str | Text, ...]] = []
    for ref, kind in sorted(series_kinds.items()):
        (metric, brace, labels), unit = short(ref).partition("{"), unit_of(ref.metric)
        name = Text.assemble(metric, (brace + labels, "dim"), (words.get(metric, ""), "green"))
        total = t("{unit} total", unit=unit) if kind == "counter" else unit
        rows.append((name, total, *_last(latest.get(ref), unit), *[ref.host] * several))
    columns = ("~" + t("series"), "<" + t("unit"), ">" + t("last value"), "<", *["<" + t("host")] * several)
    table = table_of(*columns, rows=rows)
    table.columns[3].style = "dim"
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
    """Return the unit of a metric or of its rate, empty without one or for an unknown metric."""
    return exports.unit_of(catalogue(), metric)


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


db = CommandGroup()


@db.command()
def info(config: common.Config = None, as_json: common.Json = False, state: common.State = None) -> None:
    """Show the size of the history by tier, its age, its growth and how long it is kept.

    Examples:
        wslgpud db info
    """
    target = database_of(config, state)
    with Reader(target) as reader:
        measured = maintenance.info(reader)
    keep, oldest = loaded(config).config.store, measured.oldest
    document: dict[str, Any] = {
        "database": shown(target),
        "schema": measured.version,
        "hosts": measured.hosts,
        "series": measured.series,
        "samples": measured.samples,
        "bytes_a_sample": measured.bytes_a_sample,
        "bytes_a_day": measured.bytes_a_day,
        "size_bytes": {"file": measured.file_bytes, "log": measured.wal_bytes, "free_inside": measured.free_bytes},
        "tiers_bytes": measured.tiers,
        "samples_since": common.iso(oldest.raw_wall),
        "minutes_since": common.iso(oldest.minute_wall),
        "hours_since": common.iso(oldest.hour_wall),
        "newest": common.iso(measured.newest_wall),
        "keep": {name: value for name, value in asdict(keep).items() if name != "path"},
        "set_aside": [str(path) for path in measured.set_aside],
    }
    if as_json:
        common.print_json(document)
        return
    head = {"database": document["database"], "version": measured.version, "count": measured.series}
    print(t("{database}: schema {version}, {count} series of {hosts}", hosts=tuple(measured.hosts), **head))
    rows = [
        (t("size"), t("{room_bytes} at most", room_bytes=(measured.file_bytes, keep.max_bytes))),
        (t("write-ahead log"), size(measured.wal_bytes) if measured.wal_bytes else ""),
        (t("free inside"), size(measured.free_bytes)),
    ]
    if (each := measured.bytes_a_sample) is not None:
        count, number = f"{measured.samples:,}", f"{each:.2f}"
        rows.append((t("samples"), t("{count} at {number} bytes, blocks and index", count=count, number=number)))
    if (day := measured.bytes_a_day) is not None:
        facts = {"day_bytes": day, "days": keep.raw_days, "all_bytes": day * keep.raw_days}
        rows.append((t("samples per day"), t("{day_bytes}; {days} days take {all_bytes}", **facts)))
    for name, wall, days in (
        (t("samples since"), oldest.raw_wall, keep.raw_days),
        (t("minutes since"), oldest.minute_wall, keep.minute_days),
        (t("hours since"), oldest.hour_wall, keep.hour_days),
    ):
        rows.append((name, t("{when}, kept for {days} days", when=_local(wall), days=days)))
    rows.append((t("newest"), _local(measured.newest_wall)))
    rows += [(t(maintenance.TIERS[tier][0]), size(taken)) for tier, taken in measured.tiers.items()]
    Console().print(pairs(rows))
    for path in document["set_aside"]:
        print("\n" + t("set aside because it was damaged; delete it when it is no longer needed: {path}", path=path))


@db.command()
def check(config: common.Config = None, as_json: common.Json = False, state: common.State = None) -> None:
    """Read every block and compare the summaries with their samples; exit status 1 if anything is wrong.

    The daemon may keep running; it sets a damaged file aside by itself and salvages the rest.

    Examples:
        wslgpud db check
    """
    target = database_of(config, state)
    with Reader(target) as reader, bar(t("checking"), silent=as_json) as progress:
        findings = maintenance.audit(reader, progress)
    if as_json:
        common.print_json({"database": shown(target), "findings": list(map(str, findings))})
    else:
        lines = map(current().text, findings)
        print("\n".join(lines) if findings else t("{database}: nothing wrong", database=shown(target)))
    if findings:
        raise SystemExit(1)


@db.command()
def backup(
    file: Annotated[Path, argument("FILE", "file of the copy; in a folder it is named after the day")],
    force: common.Force = False,
    config: common.Config = None,
    state: common.State = None,
) -> None:
    """Copy the history while the daemon runs; the copy is verified, and never incomplete.

    Examples:
        wslgpud db backup /mnt/backup  # a file named after the day
    """
    target = database_of(config, state)
    if file.is_dir():
        file /= f"wslgpud-{datetime.now().astimezone():%Y-%m-%d}.db"
    if file.exists() and not force:
        raise Fault("{file} exists already; it is left as it is (--force replaces it)", file=str(file))
    with bar(t("copying")) as progress:
        taken = maintenance.backup(target, file, progress)
    print(t("{title}: {text}", title=str(file), text=size(taken)))


@db.command()
def compact(dry_run: common.DryRun = False, config: common.Config = None, state: common.State = None) -> None:
    """Rewrite the file without its free space, while the daemon is stopped.

    Seldom worth it: the daemon returns most free space by itself and reuses the rest.

    Examples:
        wslgpud db compact --dry-run  # only the amount it would free
        sudo systemctl stop wslgpud && sudo wslgpud db compact
    """
    target = database_of(config, state)
    if dry_run:
        before = maintenance.would_free(target)
        print(t("{room_bytes} can be freed", room_bytes=(before.free_bytes, before.file_bytes)))
    else:
        after = maintenance.compact(target)
        print(t("{freed_bytes} freed, {left_bytes} left", freed_bytes=after.free_bytes, left_bytes=after.file_bytes))


def _local(wall: float | None) -> str:
    return t("nothing yet") if wall is None else f"{datetime.fromtimestamp(wall).astimezone():%Y-%m-%d %H:%M}"
