"""``wslgpud history``: what was measured, as a picture, a table or for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wslgpud import documents
from wslgpud.cli.common import (
    ConfigOption,
    Fault,
    HostName,
    JsonOption,
    PlotOption,
    SinceOption,
    StateOption,
    StepOption,
    UntilOption,
    open_reader,
    picture,
    warn,
)
from wslgpud.cli.moments import seconds, span
from wslgpud.words import cause, template

if TYPE_CHECKING:
    from wslgpud.curves import Curve
    from wslgpud.export import Piece, Wanted
    from wslgpud.store import Reader, SeriesRef

#: values along a picture
_PICTURE_POINTS = 700


def history(
    series: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SERIES",
            help="ram, vram, gpu, temperature, ...; a metric; a pattern: 'gpu_*', 'gpu_clock_hertz{gpu=0}'."
            " Without any: list all that there are",
        ),
    ] = None,
    since: SinceOption = "24h",
    until: UntilOption = "now",
    step: StepOption = "",
    across: Annotated[
        Literal["sum", "mean", "max", "min"] | None,
        typer.Option("--across", metavar="sum|mean|max|min", help="all series of a metric as one"),
    ] = None,
    rate: Annotated[
        bool | None, typer.Option("--rate/--no-rate", help="counters as increase a second (as pictures do)")
    ] = None,
    plot: PlotOption = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="a line a moment, a column a series")] = False,
    as_json: JsonOption = False,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="write this Parquet file (needs pyarrow)")
    ] = None,
    host: HostName = "",
    config: ConfigOption = None,
    state: StateOption = None,
) -> None:
    """Show recorded metrics: drawn on the terminal, as PNG, SVG, CSV, JSON or Parquet.

    Examples:
        wslgpud history  # all that is recorded, with the last values
        wslgpud history ram vram --since 8h  # drawn on this terminal
        wslgpud history ram --since yesterday --until 14:00 --plot ram.png
        wslgpud history vram --across sum --since 30d --step 1h --csv
    """
    from wslgpud.cli.series import find  # noqa: PLC0415 - the database only when asked for
    from wslgpud.export import Wanted  # noqa: PLC0415
    from wslgpud.store import StoreError  # noqa: PLC0415

    if sum((plot is not None, as_csv, as_json, parquet is not None)) > 1:
        raise Fault("--plot, --csv, --json and --parquet exclude each other")
    if not series and (plot is not None or as_csv or parquet is not None):
        raise Fault(
            "--plot, --csv and --parquet need a series, such as ram; 'wslgpud history' lists them all"
        )
    file = picture(plot)
    now = time.time()
    start, end = span(since, until, now)
    width = seconds(step) if step else None
    try:
        with open_reader(config, state) as reader:
            found = find(reader, series or (), host)
            if not series:
                _list(reader, found, as_json=as_json)
                return
            wanted = Wanted(found, start, end, width)
            if as_csv or as_json or parquet is not None:
                _print(reader, wanted, across, rate=bool(rate), csv=as_csv, file=parquet)
            else:
                _draw(reader, wanted, across, rate=rate is not False, file=file)
    except StoreError as error:
        raise Fault(cause(error)) from error


def _list(reader: Reader, found: Mapping[SeriesRef, str], *, as_json: bool) -> None:
    """List series with units and last values."""
    from wslgpud.cli.series import unit_of  # noqa: PLC0415 - see above

    latest = reader.latest()
    rows: list[dict[str, Any]] = []
    for ref, kind in sorted(found.items()):
        row: dict[str, Any] = {
            "ref": ref,
            "series": str(ref),
            "kind": kind,
            "unit": unit_of(ref.metric),
            "host": ref.host,
        }
        if ref in latest:
            row |= {"value": latest[ref].value, "at": _iso(latest[ref].wall)}
        rows.append(row)
    if as_json:
        print(json.dumps([{k: v for k, v in row.items() if k != "ref"} for row in rows], indent=2))
        return
    from wslgpud.cli.history_screen import print_list  # noqa: PLC0415 - see above

    print_list(rows)


def _print(
    reader: Reader, wanted: Wanted, across: str | None, *, rate: bool, csv: bool, file: Path | None
) -> None:
    """Write values for programs: every sample, or in steps."""
    from wslgpud import export  # noqa: PLC0415 - see above
    from wslgpud.catalogue import catalogue  # noqa: PLC0415

    pieces = export.by_window(reader, wanted, lambda: None)
    if across or rate:
        if wanted.step_seconds is None:
            raise Fault("--across and --rate need --step: samples of several series are not of one moment")
        curves = _curves(reader, wanted, wanted.step_seconds, across, rate=rate)
        pieces = iter([[
            export.Piece(c.ref, [p[0] for p in c.points], [p[2] for p in c.points]) for c in curves
        ]])  # fmt: skip
    try:
        if csv:
            export.wide_csv(pieces, sys.stdout)
        elif file is not None:
            with documents.draft(file) as draft:
                export.parquet(pieces, wanted.series, catalogue(), draft)
        else:
            _print_json(pieces, wanted)
    except (export.ExportError, OSError) as error:
        raise Fault(cause(error)) from error


def _print_json(pieces: Iterable[Sequence[Piece]], wanted: Wanted) -> None:
    from wslgpud.cli.series import unit_of  # noqa: PLC0415 - see above

    whole: dict[SeriesRef, list[list[float]]] = {}
    for window in pieces:
        for piece in window:
            whole.setdefault(piece.ref, []).extend(map(list, zip(piece.times, piece.values, strict=True)))
    document = {
        "since": _iso(wanted.start_wall),
        "until": _iso(wanted.end_wall),
        "step_seconds": wanted.step_seconds,
        "series": [
            {
                "series": str(ref), "metric": ref.metric, "labels": dict(ref.labels), "host": ref.host,
                "unit": unit_of(ref.metric), "points": points,
            }
            for ref, points in whole.items()
        ],
    }  # fmt: skip
    print(json.dumps(document))


def _curves(reader: Reader, wanted: Wanted, step: float, across: str | None, *, rate: bool) -> list[Curve]:
    """Read the series in steps; ``across`` makes one of all of a metric."""
    from wslgpud.cli.series import unit_of  # noqa: PLC0415 - see above
    from wslgpud.curves import curve, joined  # noqa: PLC0415

    found: dict[str, list[Curve]] = {}
    walls = wanted.start_wall, wanted.end_wall
    for ref, kind in wanted.series.items():
        as_rate = rate and kind == "counter"
        one = curve(reader, ref, walls, step, unit_of(ref.metric), rate=as_rate)
        if one.points:
            found.setdefault(ref.metric, []).append(one)
    if across is not None:
        return [joined(curves, across) for curves in found.values()]
    return [one for curves in found.values() for one in curves]


def _draw(reader: Reader, wanted: Wanted, across: str | None, *, rate: bool, file: Path | None) -> None:
    """Draw on the terminal or into a file."""
    from wslgpud.cli.history_screen import dots_across, print_curves, short  # noqa: PLC0415 - see above
    from wslgpud.plots import PlotError, plot_curves  # noqa: PLC0415
    from wslgpud.steps import step_for  # noqa: PLC0415

    points = dots_across() if file is None else _PICTURE_POINTS
    step = wanted.step_seconds or step_for(wanted.end_wall - wanted.start_wall, points)
    curves = _curves(reader, wanted, step, across, rate=rate)
    if not curves:
        raise Fault(
            "nothing of that was recorded between {start_wall} and {end_wall}",
            start_wall=wanted.start_wall,
            end_wall=wanted.end_wall,
        )
    if file is None:
        print_curves(curves, wanted.start_wall, wanted.end_wall, step)
        _say_tiers(reader, wanted.start_wall, step)
        return
    try:
        plot_curves([(short(c.ref), c.unit + "/s" * c.rate, c.points) for c in curves], step, file)
    except PlotError as error:
        raise Fault(cause(error)) from error


def _say_tiers(reader: Reader, start: float, step: float) -> None:
    """Say where a picture is coarser than asked, because the samples are not kept any more."""
    oldest = reader.oldest()
    for told, kept, width in (
        (template("samples are kept since {kept_wall}; before that it is coarser"), oldest.raw_wall, 60),
        (template("minutes are kept since {kept_wall}; before that it is coarser"), oldest.minute_wall, 3600),
    ):
        coarser = oldest.hour_wall if width == 3600 else oldest.minute_wall
        if (
            kept is not None
            and coarser is not None
            and step < width
            and start < kept
            and coarser < kept - width
        ):
            warn(told, kept_wall=kept)


def _iso(wall: float) -> str:
    return datetime.fromtimestamp(wall).astimezone().isoformat(timespec="seconds")
