"""``wslgpud export``: history for Prometheus and for data analysis."""

from __future__ import annotations

import re
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

from wslgpud.app.catalogue import catalogue
from wslgpud.cli import common
from wslgpud.cli.common import Fault, argument, database_of, option, writing
from wslgpud.cli.console import bar
from wslgpud.cli.moments import moment, seconds
from wslgpud.cli.series import find
from wslgpud.security import safe_files
from wslgpud.series import export as exports
from wslgpud.store import Reader
from wslgpud.words import t

_SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".om": "openmetrics"}


def export(
    file: Annotated[Path, argument("FILE", "file to write; - for standard output")],
    series: Annotated[list[str] | None, argument("SERIES", "as for history; all without any")] = None,
    form: Annotated[
        Literal["openmetrics", "csv", "parquet"] | None,
        option("--format", "openmetrics|csv|parquet", "format, unless the suffix of the file tells it"),
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
        found = find(reader, series or (), host)
        begins = [wall for wall in reader.oldest() if wall is not None]
        start = max(moment(since, now) if since else 0.0, min(begins, default=now))
        end = moment(until, now)
        if start > end:
            raise Fault("there is no history from before {when}", when=until)
        wanted = exports.Wanted(found, start, end, seconds(step) if step else None)
        done = iter(range(1, wanted.size + 1))
        if not piped and file.exists() and not force:
            raise Fault("{file} exists already; it is left as it is (--force replaces it)", file=str(file))
        with nullcontext() if piped else safe_files.draft(file) as path:
            _write(reader, wanted, chosen, path, extra, lambda: shown(next(done), wanted.size))
    if not piped:
        written, count = file.stat().st_size, len(found)
        print(t("{file}: {size_bytes}, {count} series", file=str(file), size_bytes=written, count=count))


def _write(
    reader: Reader,
    wanted: exports.Wanted,
    form: str,
    path: Path | None,
    extra: dict[str, str],
    progress: exports.Progress,
) -> None:
    """Write into ``path``, else to standard output."""
    if form == "parquet":
        if path is None:
            raise Fault("Parquet needs a file: it cannot be written to a pipe")
        exports.parquet(exports.by_window(reader, wanted, progress), wanted.series, catalogue(), path)
        return
    with path.open("w", encoding="utf-8") if path is not None else nullcontext(sys.stdout) as out:
        if form == "csv":
            exports.long_csv(reader, wanted, out, progress)
        else:
            exports.openmetrics(reader, wanted, out, progress, catalogue(), extra)


def _label(text: str) -> tuple[str, str]:
    found = re.fullmatch(r"([a-zA-Z_][a-zA-Z0-9_]*)=(.*)", text)
    if found is None:
        raise Fault("{text} is not a label: write name=value", text=repr(text))
    return found[1], found[2].strip('"')
