"""``wslgpud replay``: would it have warned? The daemon's own engine over recordings."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

from wslgpud.cli import common
from wslgpud.cli.common import Fault, argument, database_of, flag, picture, span, warn
from wslgpud.cli.help import cells, flush, padded
from wslgpud.model import Forecast, Level, Observation, Transition
from wslgpud.risk import forecast_messages
from wslgpud.risk.replay import Replay, TruthError, events_beside, replay, trace_name
from wslgpud.risk.trace import TraceError, read_trace
from wslgpud.series.plots import plot_replays
from wslgpud.words import cause, current, say, t

COLUMNS = 72


def replay_command(
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
    broken: list[TraceError | OSError] = []
    with _faults():
        file = picture(plot)
        results = [replay(trace_name(path), _intact_part(path, broken)) for path in paths]
        results = [result for result in results if result.samples]
        if since:
            walls = span(since, until, time.time())
            results.append(_replay_history(*walls, database_of(config, state)))
        events = {trace_name(path): events_beside(path) for path in paths}
        for result in results:
            if as_json:
                for change in result.changes:
                    print(json.dumps(change_row(result.name, change), ensure_ascii=False))
            else:
                _print_timeline(result, events.get(result.name, {}))
        if file is not None and (results or not broken):
            plot_replays([(result.name, result.points()) for result in results], events, file)
            warn("{file} is drawn", file=str(file))
    if broken:
        raise SystemExit(2)


@contextmanager
def _faults() -> Iterator[None]:
    """Report errors in the files in one line."""
    try:
        yield
    except (TraceError, TruthError) as error:
        raise Fault(cause(error)) from error
    except OSError as error:
        if error.filename is None:  # the reader of our output has closed the pipe
            raise
        raise Fault("{file}: {reason}", file=str(error.filename), reason=cause(error)) from error


def _intact_part(path: Path, broken: list[TraceError | OSError]) -> Iterator[Observation]:
    """Read a recording as far as possible: a damaged one must not hide the others."""
    begun = False
    try:
        # The intact part of one truncated by a crash.
        for observation in read_trace(path, lambda cut: warn("{what}; replayed up to there", what=cause(cut))):
            yield observation
            begun = True
    except (TraceError, OSError) as error:
        broken.append(error)
        what = cause(error)
        if isinstance(error, OSError):
            what = say("{file}: {reason}", file=str(path), reason=what)
        warn(say("{what}; replayed up to there", what=what) if begun else what)


def _replay_history(start: float, stop: float, database: str) -> Replay:
    # Imported late: only this option needs the database.
    from wslgpud.sampling.observation import observations
    from wslgpud.store import Reader, shown

    with Reader(database) as reader:
        result = replay("history", (replace(o, t=o.t - start) for o in observations(reader, start, stop)))
        result.start_wall = start
    if not result.samples:
        raise Fault("{database} holds no samples between these moments", database=shown(database))
    return result


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


def _print_timeline(result: Replay, events: Mapping[str, float]) -> None:
    from wslgpud.cli.chart import column, key_of  # Rich only for display

    shown = result.points()
    caption = t(
        "{name}: {count} samples, {span_seconds}",
        name=result.name if result.start_wall is None else t("history"),
        count=result.samples,
        span_seconds=result.seconds,
    )
    print(caption)
    if result.start_wall is not None:
        # The history may begin long after the requested moment.
        begin = result.start_wall + min(points[0][0] for points in shown.values())
        print("  " + t("{start_wall} to {end_wall}", start_wall=begin, end_wall=begin + result.seconds))
    for resource, points in shown.items():
        start, end = points[0][0], points[-1][0]
        used, marks = _strips(points, start, end)
        event = events.get(resource)
        subject = flush(current().resource(resource), 6)
        margin = " " * (cells(subject) + 2)
        wide = max(cells(t("used")), cells(t("level")))
        print(f"  {subject}  {padded(t('used'), wide)}  {used}")
        print(f"{margin}  {padded(t('level'), wide)}  {marks}".rstrip())
        if event is not None:
            caption = t("out of memory at {time} s", time=f"{event:.1f}")
            print(f"{margin}{' ' * (wide + 4 + column(event, start, end, COLUMNS))}^ {caption}")
        for change in result.changes:
            if change.resource == resource:
                forecast = cast("Forecast", change.forecast)
                text = current().text(forecast_messages.headline(forecast)) if change.new >= Level.WARNING else ""
                when = flush(t("{number} s", number=f"{change.mono:.1f}"), 11)
                if result.start_wall is not None:
                    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(result.start_wall + change.mono))
                print(f"    {when}  {padded(t(change.new.label), 9)}  {text}".rstrip())
                if change.new >= Level.WARNING and change.new > change.old:
                    why = current().text(forecast_messages.reason(forecast))
                    print(f"    {' ' * len(when)}             {why}")
    if key := key_of(change.new for change in result.changes):
        print("  " + "  ".join(key))
    print()


def _strips(points: Sequence[tuple[float, float, float | None, Level]], start: float, end: float) -> tuple[str, str]:
    """Compress a series into one line of bars (highest use per column) and one of levels (worst per column)."""
    from wslgpud.cli.chart import LEVEL_MARKS, column, strip  # Rich only for display

    used, worst = [0.0] * COLUMNS, [Level.OK] * COLUMNS
    for at, share, _, level in points:
        place = column(at, start, end, COLUMNS)
        used[place], worst[place] = max(used[place], 1.0 - share), max(worst[place], level)
    return strip(used), "".join(LEVEL_MARKS[level] for level in worst)
