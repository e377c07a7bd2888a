"""``wslgpud replay``: would it have warned? The daemon's own engine over recordings."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from wslgpud.cli.common import (
    ConfigOption,
    Fault,
    PlotOption,
    SinceOption,
    StateOption,
    UntilOption,
    database_of,
    picture,
    warn,
)
from wslgpud.cli.help import cells, flush, listed, padded
from wslgpud.cli.moments import span
from wslgpud.model import Level, Observation
from wslgpud.plots import PlotError, plot_replays
from wslgpud.risk import wording
from wslgpud.risk.engine import LevelChange
from wslgpud.risk.replay import Replay, replay, score_all, trace_name, truth_beside
from wslgpud.risk.score import Score, Truth, TruthError
from wslgpud.risk.trace import TraceError, read_trace
from wslgpud.words import cause, current, failure, say, t

COLUMNS = 72
RELIABILITY_SECONDS = (60, 300)


def replay_command(
    traces: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="recordings (JSON Lines, gzip-compressed or not)"),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="print a JSON object, on a line of its own, for each change of level"),
    ] = False,
    score: Annotated[
        bool, typer.Option("--score", help="judge the warnings by the .truth.json beside each recording")
    ] = False,
    plot: PlotOption = None,
    since: SinceOption = "",
    until: UntilOption = "now",
    config: ConfigOption = None,
    state: StateOption = None,
) -> None:
    """Run the risk engine over recordings, or with --since over your own history, faster than real time.

    Prints a timeline of each, or with --json every change of level; with --score how many events were
    warned of in time, how many alarms were false, and the same for simple rules that others use.

    Examples:
        wslgpud replay --since 8h  # would it have warned me last night?
        wslgpud replay leak.jsonl.gz --plot leak.png
        wslgpud replay --score tests/traces/*.jsonl.gz
    """
    paths = traces or []
    if as_json and score:
        raise Fault("--json and --score exclude each other: each has its own output")
    if not since and (until != "now" or not paths):
        raise Fault("name recordings, or say with --since when in your own history to begin")
    broken: list[TraceError | OSError] = []
    with _faults():
        if score:
            _print_scores(paths)
        file = picture(plot)
        shown = not score or file is not None
        results = [replay(trace_name(path), _what_is_whole(path, broken)) for path in paths] if shown else []
        results = [result for result in results if result.samples]
        if since:
            walls = span(since, until, time.time())
            results.append(_replay_history(*walls, database_of(config, state)))
        truths = {trace_name(path): truth_beside(path) for path in paths}
        if not score:
            for result in results:
                _print_result(result, truths.get(result.name), as_json=as_json)
        if file is not None and (results or not broken):
            _draw(results, truths, file)
    if broken:
        raise typer.Exit(2)


@contextmanager
def _faults() -> Iterator[None]:
    """Turn what is wrong with the files into one line."""
    try:
        yield
    except (TraceError, TruthError, PlotError) as error:
        raise Fault(cause(error)) from error
    except OSError as error:
        if error.filename is None:  # somebody has read enough of our output
            raise
        raise Fault("{file}: {reason}", file=str(error.filename), reason=failure(error)) from error


def _draw(results: Sequence[Replay], truths: Mapping[str, Truth | None], file: Path) -> None:
    events = {name: truth.events for name, truth in truths.items() if truth is not None}
    plot_replays([(result.name, result.points) for result in results], events, file)
    warn("{file} is drawn", file=str(file))


def _read(path: Path, said: set[str] | None = None) -> Iterator[Observation]:
    """Read a recording; of one that a crash cut short, what there is (and say so, unless it is ``said``)."""

    def say(cut: TraceError) -> None:
        if said is None or cut.path not in said:
            warn("{what}; replayed up to there", what=cause(cut))
        if said is not None:
            said.add(cut.path)

    return read_trace(path, say)


def _what_is_whole(path: Path, broken: list[TraceError | OSError]) -> Iterator[Observation]:
    """Read a recording as far as it can be read: one that is broken keeps nobody from seeing the others."""
    samples = 0
    try:
        for observation in _read(path):
            yield observation
            samples += 1
    except (TraceError, OSError) as error:
        broken.append(error)
        what = (
            cause(error)
            if isinstance(error, TraceError)
            else say("{file}: {reason}", file=str(path), reason=failure(error))
        )
        warn(say("{what}; replayed up to there", what=what) if samples else what)


def _replay_history(start: float, stop: float, database: str) -> Replay:
    # Late: only this option needs the database.
    from wslgpud.history import observations  # noqa: PLC0415
    from wslgpud.store import Reader, StoreError, shown  # noqa: PLC0415

    try:
        with Reader(database) as reader:
            seen = (replace(o, t=o.t - start) for o in observations(reader, start, stop))
            result = replay("history", seen)
            result.start_wall = start
    except StoreError as error:
        raise Fault(cause(error)) from error
    if not result.samples:
        raise Fault("{database} holds no samples between these moments", database=shown(database))
    return result


def _print_result(result: Replay, truth: Truth | None, *, as_json: bool) -> None:
    if as_json:
        for change in result.changes:
            print(json.dumps(change_row(result.name, change), ensure_ascii=False))
    else:
        _print_timeline(result, truth)


def change_row(trace: str, change: LevelChange) -> dict[str, object]:
    """Return one change of level as ``--json`` prints it; unknown values are null.

    ``probability`` is that of exhaustion within an hour; null while too little was seen to tell.
    """
    forecast = change.forecast
    eta, chances = forecast.eta_seconds, forecast.probabilities
    return {
        "trace": trace,
        "t": change.t,
        "resource": change.resource,
        "level": change.new.label,
        "eta_s": None if eta is None else round(eta, 1),
        "probability": None if 3600 not in chances else round(chances[3600], 3),
        "who": str(forecast.who) or None,
        "reason": str(wording.reason(forecast)) or None,
    }


def _print_timeline(result: Replay, truth: Truth | None) -> None:
    from wslgpud.cli.chart import key_of  # noqa: PLC0415 - rich only when somebody looks

    told = t(
        "{name}: {count} samples, {span_seconds}",
        name=result.name if result.start_wall is None else t("history"),
        count=result.samples,
        span_seconds=result.seconds,
    )
    print(told)
    if result.start_wall is not None:
        # The history may begin long after the moment that was asked for.
        begin = result.start_wall + min(points[0][0] for points in result.points.values())
        print("  " + t("{start_wall} to {end_wall}", start_wall=begin, end_wall=begin + result.seconds))
    for resource, points in result.points.items():
        start, end = points[0][0], points[-1][0]
        used, marks = _strips(points, start, end)
        event = truth.events.get(resource) if truth is not None else None
        subject = flush(current().resource(resource), 6)
        margin = " " * (cells(subject) + 2)
        wide = max(cells(t("used")), cells(t("level")))
        print(f"  {subject}  {padded(t('used'), wide)}  {used}")
        print(f"{margin}  {padded(t('level'), wide)}  {marks}".rstrip())
        if event is not None:
            column = min(COLUMNS - 1, max(0, int((event - start) / max(1e-9, end - start) * COLUMNS)))
            told = t("out of memory at {time} s", time=f"{event:.1f}")
            print(f"{margin}{' ' * (wide + 4 + column)}^ {told}")
        for change in result.changes:
            if change.resource == resource:
                text = current().text(change.message) if change.new >= Level.WARNING else ""
                when = flush(t("{number} s", number=f"{change.t:.1f}"), 11)
                if result.start_wall is not None:
                    when = _clock(result.start_wall + change.t)
                print(f"    {when}  {padded(t(change.new.label), 9)}  {text}".rstrip())
                if change.new >= Level.WARNING and change.new > change.old:
                    print(
                        f"    {' ' * len(when)}             {current().text(wording.reason(change.forecast))}"
                    )
    if key := key_of(change.new for change in result.changes):
        print("  " + "  ".join(key))
    print()


def _clock(wall: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall))


def _strips(
    points: Sequence[tuple[float, float, float | None, Level]], start: float, end: float
) -> tuple[str, str]:
    """Squeeze a series into one line of bars (most used per column) and one of levels (worst per column)."""
    from wslgpud.cli.chart import LEVEL_MARKS, strip  # noqa: PLC0415 - rich only when somebody looks

    used, worst = [0.0] * COLUMNS, [Level.OK] * COLUMNS
    for at, share, _, level in points:
        column = min(COLUMNS - 1, int((at - start) / max(1e-9, end - start) * COLUMNS))
        used[column] = max(used[column], 1.0 - share)
        worst[column] = max(worst[column], level)
    return strip(used), "".join(LEVEL_MARKS[level] for level in worst)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _row(name: str, score: Score) -> str:
    events, lead = len(score.leads), score.median_lead
    shares = "".join(f" {_percent(score.share_at(seconds)):>6}" for seconds in (5, 15, 30))
    return (
        f"{padded(name, 42)} {_percent(score.in_time / events if events else None):>7}"
        f"{shares}"
        f" {flush('-' if lead is None else t('{number} s', number=round(lead)), 6)}"
        f" {score.quiet_with_alarm:>4}/{score.quiet_traces:<3}"
        f" {score.tolerated_with_alarm:>4}/{score.tolerated_traces:<3}"
        f" {score.alarms_before_events / events if events else 0.0:>8.2f}"
    )


def _print_scores(paths: Sequence[Path]) -> None:
    pairs = []
    for path in paths:
        truth = truth_beside(path)
        if truth is None:
            raise TruthError(
                say(
                    "{file}: --score needs {name}.truth.json beside it", file=str(path), name=trace_name(path)
                )
            )
        pairs.append((path, truth))
    lines = score_all(pairs, read=functools.partial(_read, said=set()))
    told = t(
        "{traces} recordings, {events} events. Alarm: warning or above; critical: critical or above.",
        traces=len(pairs),
        events=len(lines[0].warning.leads),
    )
    print(f"{told}\n")
    heads = [
        (t("in time"), 7), (">= " + t("{number} s", number=5), 6), (">= 15", 6), (">= 30", 6),
        (t("median"), 6), (t("silent"), 8), (t("tolerated"), 8), (t("alarms"), 8),
    ]  # fmt: skip
    print(" ".join([" " * 42, *(flush(head, wide) for head, wide in heads)]))
    for line in lines:
        print(_row(t(line.name), line.warning))
        if line.critical.leads or line.critical.quiet_traces:
            print(_row(f"   {t('critical')}", line.critical))
    engine = lines[0]
    _print_names(t("not in time"), engine.warning.late)
    _print_names(t("false alarms"), engine.warning.noisy)
    _print_names(t("false criticals"), engine.critical.noisy)
    print("\n" + t("Brier score of the probabilities (0 is best, a coin's is 0.25):"))
    for line in lines[:2]:
        errors = listed(
            t("{title}: {text}", title=current().duration(horizon), text=f"{error:.3f}")
            for horizon, error in line.calibration.items()
        )
        print(f"  {padded(t(line.name), 20)} {errors}")
    print(
        "\n" + t("Forecast probability of exhaustion within this time -> how often it came true (samples):")
    )
    for horizon in RELIABILITY_SECONDS:
        parts = [
            f"{_percent(said)} -> {_percent(came)} ({count})"
            for said, came, count in engine.reliability.get(horizon, ())
        ]
        print(f"  {padded(current().duration(horizon), 6)} {listed(parts) or t('never')}")
    notes = (
        t("silent: recordings with a false alarm, of those that call for silence"),
        t("tolerated: the same, of those where a warning is fair"),
        t("alarms: for each event, before it"),
    )
    print("\n" + "\n".join(notes))


def _print_names(what: str, names: Sequence[str]) -> None:
    print("  " + t("{title}: {text}", title=what, text=listed(names) or t("none")))
