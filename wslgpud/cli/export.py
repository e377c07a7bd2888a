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
from wslgpud.cli.common import ConfigOption, Fault, StateOption, open_reader
from wslgpud.cli.history import HostName
from wslgpud.cli.moments import moment, seconds
from wslgpud.cli.progress import bar
from wslgpud.units import size

if TYPE_CHECKING:
    from wslgpud.export import Progress, Wanted
    from wslgpud.store import Reader

_SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".om": "openmetrics", ".txt": "openmetrics"}


def export(
    file: Annotated[Path, typer.Argument(help="file to write; - for standard output")],
    series: Annotated[
        list[str] | None, typer.Argument(metavar="[SERIES]...", help="as for history; all without any")
    ] = None,
    form: Annotated[
        Literal["openmetrics", "csv", "parquet"] | None,
        typer.Option("--format", help="what to write; the file's suffix says it: .om, .csv, .parquet"),
    ] = None,
    since: Annotated[str, typer.Option(help="beginning: 7d ago, or 2026-11-21; all if left out")] = "",
    until: Annotated[str, typer.Option(help="end, likewise; now if left out")] = "",
    step: Annotated[str, typer.Option(help="one value for each 1min, 1h, ... instead of every sample")] = "",
    label: Annotated[
        list[str] | None,
        typer.Option(help="label for all series in OpenMetrics, such as job=wslgpud instance=pc:9655"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace a file of that name")] = False,
    host: HostName = "",
    config: ConfigOption = None,
    state: StateOption = None,
) -> None:
    """Write the history as OpenMetrics (for promtool), CSV or Parquet; memory stays bounded.

    Prometheus takes it over by: promtool tsdb create-blocks-from openmetrics FILE FOLDER
    """
    from wslgpud.cli.series import find  # noqa: PLC0415 - the database only when asked for
    from wslgpud.export import ExportError, Wanted  # noqa: PLC0415
    from wslgpud.store import StoreError  # noqa: PLC0415

    chosen = form or _SUFFIXES.get(file.suffix)
    if chosen is None:
        raise Fault(f"{file}: say --format openmetrics, csv or parquet, or name it .om, .csv or .parquet")
    extra = dict(_label(text) for text in label or ())
    now = time.time()
    try:
        with open_reader(config, state) as reader, bar("exporting", silent=str(file) == "-") as shown:
            found = find(reader, series or (), host)
            begins = [wall for wall in reader.oldest() if wall is not None]
            start = max(moment(since, now) if since else 0.0, min(begins, default=now))
            end = moment(until, now) if until else now
            if start > end:
                raise Fault(f"there is no history from before {until or 'now'}")
            wanted = Wanted(found, start, end, seconds(step) if step else None)
            done = iter(range(1, wanted.size + 1))
            with _written(file, force=force) as path:
                _write(reader, wanted, chosen, path, extra, lambda: shown(next(done), wanted.size))
    except (StoreError, ExportError) as error:
        raise Fault(str(error)) from error
    except OSError as error:
        raise Fault(f"{file}: {error.strerror}") from error
    if str(file) != "-":
        print(f"{file}: {size(file.stat().st_size)}, {len(found)} series")


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
        raise Fault(f"{file} exists already; it is left as it is (--force replaces it)")
    return documents.draft(file)


def _label(text: str) -> tuple[str, str]:
    found = re.fullmatch(r"([a-zA-Z_][a-zA-Z0-9_]*)=(.*)", text)
    if found is None:
        raise Fault(f"{text!r} is no label: write name=value")
    return found[1], found[2].strip('"')
