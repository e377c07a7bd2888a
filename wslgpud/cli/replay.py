"""``wslgpud record``, ``replay`` and ``capture``: a trace of this machine, the daemon's engine over it, its files."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, cast

from wslgpud.app.process import host_at
from wslgpud.cli import common
from wslgpud.cli.common import Fault, argument, database_of, flag, loaded, option, picture, warn, writing
from wslgpud.host import Host
from wslgpud.model import Forecast, Level, Observation, Transition
from wslgpud.risk import forecast_messages, trace
from wslgpud.risk.trace import Replay, TraceError, read_trace, trace_name
from wslgpud.security import safe_files
from wslgpud.series.plots import plot_replays
from wslgpud.words import cause, current, say, says, t
from wslgpud.words.moments import seconds, span

if TYPE_CHECKING:
    from wslgpud.sampling.assessor import Assessor

#: widest and narrowest timeline, and the room left of it
COLUMNS, _MIN_COLUMNS, _MARGIN = 72, 30, 20


def record(
    file: Annotated[Path, argument("FILE", "recording to write; compressed if it ends in .gz")],
    lasting: Annotated[str, option("--for", "TIME", "stop after this time: 90s, 30min, 2h; else at Ctrl-C")] = "",
    config: common.Config = None,
    host_root: common.HostRoot = None,
) -> None:
    """Record the risk engine's input, sample by sample, until Ctrl-C.

    Examples:
        wslgpud record leak.jsonl.gz --for 10min
        wslgpud replay leak.jsonl.gz  # the engine's verdict on it
    """
    length = seconds(lasting) if lasting else float("inf")
    settings, host = loaded(config).config, host_at(host_root)
    with writing(file):
        opener = gzip.open if file.suffix == ".gz" else open
        descriptor = safe_files.open_plain(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        stream: IO[str] = opener(f"/proc/self/fd/{descriptor}", "wt", encoding="utf-8")
        os.close(descriptor)
    from wslgpud.sampling.assessor import Assessor  # a replay needs no sources

    monitor, count = Assessor(settings, host), -1  # the first line is a header
    for number in (signal.SIGTERM, signal.SIGHUP):  # a compressed file that is not closed cannot be replayed
        signal.signal(number, signal.default_int_handler)
    with closing(monitor), writing(file), stream, suppress(KeyboardInterrupt):
        for line in _lines(monitor, settings.sampling.interval_seconds, length):
            stream.write(line)
            stream.flush()  # the last lines before a crash matter most
            count += 1
    count = max(0, count)
    print(current().text(says("{count} sample in {file}", "{count} samples in {file}", count=count, file=str(file))))


def _lines(assessor: Assessor, interval_seconds: float, lasting_seconds: float) -> Iterator[str]:
    """Sample for so long, and yield the header of a trace, then a line for each sample."""
    end, first = time.monotonic() + lasting_seconds, None
    while (began := time.monotonic()) < end:
        seen = assessor.tick()[0].observation
        if first is None:
            first = seen.t
            yield json.dumps(trace.header(interval_seconds, {"wsl": seen.wsl})) + "\n"
        row = trace.row_from_observation(dataclasses.replace(seen, t=seen.t - first))
        yield json.dumps(row, separators=(",", ":")) + "\n"
        time.sleep(max(0.0, min(began + assessor.delay_seconds, end) - time.monotonic()))


def replay(
    traces: Annotated[list[Path] | None, argument("FILE", "recordings (JSON Lines, gzip-compressed or not)")] = None,
    as_json: Annotated[
        bool, flag("--json", "print each change of level as a JSON object on a line of its own")
    ] = False,
    plot: common.Plot = None,
    since: common.Since = "",
    until: common.Until = "now",
    config: common.Config = None,
    state: common.State = None,
) -> None:
    """Run the risk engine over recordings, or with --since over your own history, faster than real time.

    Prints a timeline of each, or with --json every change of level.

    Examples:
        wslgpud replay --since 8h  # would it have warned me last night?
        wslgpud replay leak.jsonl.gz --plot leak.png
    """
    paths = traces or []
    if not since and (until != "now" or not paths):
        raise Fault("name recordings, or the start in your own history with --since")
    broken: list[Path] = []
    file = picture(plot)
    results = [trace.replay(trace_name(path), _intact_part(path, broken)) for path in paths]
    results = [result for result in results if result.samples]
    if since:
        results.append(_of_history(database_of(config, state), *span(since, until, time.time())))
    for result in results:
        if as_json:
            for change in result.changes:
                print(json.dumps(change_row(result.name, change), ensure_ascii=False))
        else:
            _print_timeline(result)
    if file is not None and (results or not broken):
        with writing(file):
            plot_replays([(result.name, result.points()) for result in results], file)
        warn("{file} is drawn", file=str(file))
    if broken:
        raise SystemExit(2)


def _of_history(database: str, start_wall: float, end_wall: float) -> Replay:
    """Run the engine over the history between two moments."""
    from wslgpud.sampling.observation import observations  # only this needs the database
    from wslgpud.store import Reader, shown

    with Reader(database) as reader:
        seen = observations(reader, start_wall, end_wall)
        result = trace.replay("history", (dataclasses.replace(one, t=one.t - start_wall) for one in seen))
    if not result.samples:
        raise Fault("{database} holds no samples between these moments", database=shown(database))
    result.start_wall = start_wall
    return result


def _intact_part(path: Path, broken: list[Path]) -> Iterator[Observation]:
    """Read a recording as far as possible: a damaged one must not hide the others."""
    begun = False
    try:
        # The intact part of one truncated by a crash.
        for observation in read_trace(path, lambda cut: warn("{what}; replayed up to there", what=cause(cut))):
            yield observation
            begun = True
    except (TraceError, OSError) as error:
        broken.append(path)
        what = cause(error)
        if isinstance(error, OSError):
            what = say("{file}: {reason}", file=str(path), reason=what)
        warn(say("{what}; replayed up to there", what=what) if begun else what)


def change_row(trace: str, change: Transition) -> dict[str, object]:
    """Return one change of level as ``--json`` prints it; unknown values are null.

    ``probability`` is that of exhaustion within an hour; null with too few samples.
    """
    forecast = cast("Forecast", change.forecast)
    eta, chances = forecast.eta_seconds, forecast.probabilities
    return {
        "trace": trace,
        "t": change.mono,
        "resource": change.resource,
        "level": change.new.label,
        "eta_s": None if eta is None else round(eta, 1),
        "probability": None if 3600 not in chances else round(chances[3600], 3),
        "who": str(forecast.who) or None,
        "reason": str(forecast_messages.reason(forecast)) or None,
    }


def _print_timeline(result: Replay) -> None:
    from rich.padding import Padding  # Rich only for display

    from wslgpud.cli.chart import key_of, level_strip, spark
    from wslgpud.cli.console import Console, table_of

    console, shown = Console(soft_wrap=True), result.points()
    columns = min(COLUMNS, max(_MIN_COLUMNS, console.width - _MARGIN))
    name = result.name if result.start_wall is None else t("history")
    count, length = result.samples, result.seconds
    console.print(t("{name}: {count} samples, {span_seconds}", name=name, count=count, span_seconds=length))
    if result.start_wall is not None:
        # The history may begin long after the requested moment.
        begin = result.start_wall + min(points[0][0] for points in shown.values())
        console.print("  " + t("{start_wall} to {end_wall}", start_wall=begin, end_wall=begin + length))
    for resource, points in shown.items():
        start, end = points[0][0], points[-1][0]
        span, step = max(end - start, 1e-9), (end - start) / len(points)
        used = spark([(at, 1.0 - share) for at, share, _, _ in points], end, span, columns)
        levels = level_strip([(at, level) for at, _, _, level in points], start, end, step, columns)
        rows = [(current().resource(resource), t("used"), used), ("", t("level"), levels)]
        console.print(Padding.indent(table_of(">", "<", "<", rows=rows), 2))
        changes = []
        for change in (one for one in result.changes if one.resource == resource):
            forecast = cast("Forecast", change.forecast)
            texts = [current().text(forecast_messages.headline(forecast))] if change.new >= Level.WARNING else []
            texts += [current().text(forecast_messages.reason(forecast))] if texts and change.new > change.old else []
            when = t("{number} s", number=f"{change.mono:.1f}")
            if result.start_wall is not None:
                when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(result.start_wall + change.mono))
            changes.append((when, t(change.new.label), "\n".join(texts)))
        console.print(Padding.indent(table_of(">", "<", "~", rows=changes), 4))
    if key := key_of(change.new for change in result.changes):
        console.print("  " + "  ".join(key))
    console.print()


def capture(folder: Annotated[Path, argument("FOLDER", "new folder to write")], config: common.Config = None) -> None:
    """Copy the files that wslgpud reads here, with names, serials and addresses masked, for a bug report.

    Examples:
        wslgpud capture my-machine  # then look through the files
    """
    from wslgpud.sampling import capture as captures

    if folder.exists():
        raise Fault("{folder} exists already; name a new folder", folder=str(folder))
    with writing(folder):
        count = len(captures.capture(Host(), folder, loaded(config).config))
    message = t("wrote {count} files in {folder}: review them before you share them", count=count, folder=str(folder))
    print(message)
