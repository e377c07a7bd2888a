"""``wslgpud export``: history for Prometheus and for data analysis."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from wslgpud import documents
from wslgpud.cli.common import (
    ConfigOption,
    Fault,
    ForceOption,
    HostName,
    SinceOption,
    StateOption,
    StepOption,
    UntilOption,
    open_reader,
)
from wslgpud.cli.moments import moment, seconds
from wslgpud.cli.progress import bar
from wslgpud.words import cause, failure, t

if TYPE_CHECKING:
    from wslgpud.export import Progress, Wanted
    from wslgpud.store import Reader

_SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".om": "openmetrics"}


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="file to write; - for standard output")],
    series: Annotated[
        list[str] | None, typer.Argument(metavar="SERIES", help="as for history; all without any")
    ] = None,
    form: Annotated[
        Literal["openmetrics", "csv", "parquet"] | None,
        typer.Option(
            "--format",
            metavar="openmetrics|csv|parquet",
            help="format, unless the suffix of the file tells it",
        ),
    ] = None,
    since: SinceOption = "",
    until: UntilOption = "now",
    step: StepOption = "",
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label", metavar="NAME=VALUE", help="label for all series in OpenMetrics, such as job=wslgpud"
        ),
    ] = None,
    force: ForceOption = False,
    host: HostName = "",
    config: ConfigOption = None,
    state: StateOption = None,
) -> None:
    """Export the history as OpenMetrics (for promtool), CSV or Parquet.

    Examples:
        wslgpud export last-week.csv ram vram --since 7d
        wslgpud export history.parquet --step 1min  # a minute a row, for pandas
        wslgpud export history.om --label job=wslgpud  # then: promtool tsdb create-blocks-from openmetrics
    """
    from wslgpud.cli.series import find  # noqa: PLC0415 - the database only when asked for
    from wslgpud.export import ExportError, Wanted  # noqa: PLC0415
    from wslgpud.store import StoreError  # noqa: PLC0415

    chosen = form or _SUFFIXES.get(file.suffix)
    if chosen is None:
        raise Fault("{file}: name it .om (OpenMetrics), .csv or .parquet, or say --format", file=str(file))
    extra = dict(_label(text) for text in label or ())
    now = time.time()
    try:
        with open_reader(config, state) as reader, bar(t("exporting"), silent=str(file) == "-") as shown:
            found = find(reader, series or (), host)
            begins = [wall for wall in reader.oldest() if wall is not None]
            start = max(moment(since, now) if since else 0.0, min(begins, default=now))
            end = moment(until, now)
            if start > end:
                raise Fault("there is no history from before {when}", when=until)
            wanted = Wanted(found, start, end, seconds(step) if step else None)
            done = iter(range(1, wanted.size + 1))
            with _written(file, force=force) as path:
                _write(reader, wanted, chosen, path, extra, lambda: shown(next(done), wanted.size))
    except (StoreError, ExportError) as error:
        raise Fault(cause(error)) from error
    except OSError as error:
        raise Fault("cannot write {file}: {reason}", file=str(file), reason=failure(error)) from error
    if str(file) != "-":
        told = t(
            "{file}: {size_bytes}, {count} series",
            file=str(file),
            size_bytes=file.stat().st_size,
            count=len(found),
        )
        print(told)


def _write(
    reader: Reader, wanted: Wanted, form: str, path: Path | None, extra: dict[str, str], progress: Progress
) -> None:
    from wslgpud import export as exports  # noqa: PLC0415 - see above
    from wslgpud.catalogue import catalogue  # noqa: PLC0415

    if form == "parquet":
        if path is None:
            raise Fault("Parquet needs a file: it cannot be written to a pipe")
        pieces = exports.by_window(reader, wanted, progress)
        exports.parquet(pieces, wanted.series, catalogue(), path)
        return
    with path.open("w", encoding="utf-8") if path is not None else _standard_output() as out:
        if form == "csv":
            exports.long_csv(reader, wanted, out, progress)
        else:
            exports.openmetrics(reader, wanted, out, progress, catalogue(), extra)


@contextmanager
def _standard_output() -> Iterator[typer.FileTextWrite]:
    yield sys.stdout  # type: ignore[misc]  # which stays open


def _written(file: Path, *, force: bool) -> AbstractContextManager[Path | None]:
    """Lend a path to write the file by; None for standard output."""
    if str(file) == "-":
        return nullcontext()
    if file.exists() and not force:
        raise Fault("{file} exists already; it is left as it is (--force replaces it)", file=str(file))
    return documents.draft(file)


def _label(text: str) -> tuple[str, str]:
    found = re.fullmatch(r"([a-zA-Z_][a-zA-Z0-9_]*)=(.*)", text)
    if found is None:
        raise Fault("{text} is not a label: write name=value", text=repr(text))
    return found[1], found[2].strip('"')
