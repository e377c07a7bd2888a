"""What a run says: compared with earlier nights, as a level of alert, and in words. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from wslgpud.model import FindingKind, Level, Number, StressFinding, StressResult, StressVerdict
from wslgpud.words import TEMPLATES, Fact, Message, MessageLike, clauses, filled, say, says, template

MIB = 1 << 20
#: nights of the baseline, and the fewest for one
BASELINE_RUNS, MIN_RUNS = 14, 5
#: A run must deviate from the median by four usual deviations, and by a relevant share. One bad night alone may be
#: anything; two in a row are a regression, and so is a very bad one.
DEVIATIONS, MIN_SPREAD_RATIO = 4.0, 0.005
SEVERE_RATIO = 0.10
#: factor that makes the median absolute deviation of a normal distribution its standard deviation
MAD_SCALE = 1.4826
#: figure -> kind of finding for its loss, its name, and the share and bytes below which a loss is ignored
WATCHED: tuple[tuple[str, FindingKind, str, float, int], ...] = (
    ("write_median", "bandwidth", template("write bandwidth"), 0.03, 0),
    ("change_median", "bandwidth", template("read-and-write bandwidth"), 0.03, 0),
    ("read_median", "bandwidth", template("read bandwidth"), 0.03, 0),
    ("usable_bytes", "usable", template("usable VRAM"), 0.01, 64 * MIB),
)
VERDICTS: Mapping[StressVerdict, str] = TEMPLATES["label"]["verdict"]
#: Alert on the age of the last success, not on one failure: a GPU in use one night is no fault.
LATE_SECONDS = 3 * 86400.0
MODES = {"quick": template("quick run"), "nightly": template("nightly run"), "full": template("full run")}
#: the card's state during a run, by the figure that shows it
COURSE: Mapping[str, Callable[[float], MessageLike]] = {
    "temperature_max_celsius": lambda celsius: say("up to {celsius} °C", celsius=round(celsius)),
    "power_max_watts": lambda watts: f"{watts:.0f} W",
    "memory_clock_hertz": lambda hertz: say("memory at {mhz} MHz", mhz=round(hertz / 1e6)),
    "slowed_ratio": lambda ratio: say("throttled for {slowed_ratio} of the time", slowed_ratio=ratio),
    "ecc_corrected": lambda n: says("ECC corrected {count} error", "ECC corrected {count} errors", count=int(n)),
    "ecc_uncorrected": lambda n: says(
        "{count} error could not be corrected", "{count} errors could not be corrected", count=int(n)
    ),
}
#: number of runs before and after a driver change that are compared
NEW_RUNS, OLD_RUNS = 3, 7


def comparable(one: StressResult, other: StressResult) -> bool:
    return one.uuid == other.uuid and dict(one.key) == dict(other.key)


def undisturbed(result: StressResult) -> bool:
    """Return whether a run's figures are undisturbed and at the card's usual clocks."""
    return result.complete and not result.values.get("contended") and not result.values.get("slowed_ratio")


def drop(value: float | None, usual: Sequence[float], min_ratio: float, min_drop: float) -> float | None:
    """Return the share by which ``value`` lies below the usual; None where negligible or unknown."""
    if value is None or len(usual) < MIN_RUNS:
        return None
    middle = median(usual)
    spread = MAD_SCALE * median(abs(x - middle) for x in usual)
    lost = middle - value
    limit = max(DEVIATIONS * max(spread, MIN_SPREAD_RATIO * middle), min_ratio * middle, min_drop)
    return lost / middle if lost > limit else None


def _figures(name: str, runs: Iterable[StressResult]) -> list[Number]:
    return [run.values[name] for run in runs if name in run.values]


def regressions(result: StressResult, earlier: Sequence[StressResult]) -> Iterator[StressFinding]:
    """Yield figures that fell two nights in a row, or by much in one; ``earlier`` runs oldest first."""
    comparable_runs = [run for run in earlier if comparable(run, result) and undisturbed(run)]
    if not comparable_runs or not undisturbed(result):
        return
    *before, last = comparable_runs
    for name, kind, text, min_ratio, min_drop in WATCHED:
        usual = _figures(name, before)[-BASELINE_RUNS:]
        now, then = (_as_usual(name, run, before) for run in (result, last))
        lost, again = (drop(value, usual, min_ratio, min_drop) for value in (now, then))
        if now is None or lost is None or (again is None and lost <= SEVERE_RATIO):
            continue
        facts: dict[str, Fact] = {"figure": Message(text), "percent": f"{100 * lost:.1f} %"}
        facts |= {"now": _shown(name, now), "usual": _shown(name, median(usual))}
        fell = (
            say("{figure} fell by {percent} at once: {now}, usually {usual}", **facts)
            if again is None
            else say("{figure} fell by {percent} for the second run in a row: {now}, usually {usual}", **facts)
        )
        yield StressFinding(kind, clauses((fell, _clock(kind, result, before))))


def _as_usual(name: str, run: StressResult, before: Sequence[StressResult]) -> float | None:
    """Return a figure corrected for other programs that held more than usual, which is no fault of the card."""
    value, held = run.values.get(name), run.values.get("foreign_bytes")
    usually = _figures("foreign_bytes", before)[-BASELINE_RUNS:]
    if name != "usable_bytes" or value is None or held is None or not usually:
        return value
    return value + max(0, held - median(usually))


def _clock(kind: FindingKind, result: StressResult, before: Sequence[StressResult]) -> MessageLike:
    """Return the note that the memory ran at a lower clock, where that explains a loss."""
    now, usual = result.values.get("memory_clock_hertz"), _figures("memory_clock_hertz", before)
    if kind != "bandwidth" or now is None or not usual or now > 0.98 * median(usual):
        return ""
    return say(
        "the memory ran at {now} MHz, usually at {usual} MHz", now=round(now / 1e6), usual=round(median(usual) / 1e6)
    )


def change_of_driver(result: StressResult, earlier: Sequence[StressResult]) -> StressFinding | None:
    """Return the effect of a new driver or torch, once, after its third run."""
    card_runs = [run for run in earlier if run.uuid == result.uuid and undisturbed(run)]
    if not undisturbed(result):
        return None
    new = [run for run in card_runs if comparable(run, result)]
    old = [run for run in card_runs if not comparable(run, result) and run.key.get("mode") == result.key.get("mode")]
    if len(new) != NEW_RUNS - 1 or not old or old[-1].wall > new[0].wall:
        return None
    old = [run for run in old if comparable(run, old[-1])][-OLD_RUNS:]
    names = [name for name in ("driver", "torch", "cuda", "wsl") if old[-1].key.get(name) != result.key.get(name)]
    was, now = old[-1].key, result.key
    titles = tuple(
        say("{name} {before} → {now}", name=named(n), before=was.get(n, "?"), now=now.get(n, "?")) for n in names
    )
    changes: list[Message] = []
    for name, _, text, _, _ in WATCHED:
        after, before = _figures(name, (*new, result)), _figures(name, old)
        if after and before:
            change = median(after) - median(before)
            share = 100 * change / median(before)
            by = f"{change / MIB:+.0f} MiB" if name.endswith("_bytes") else f"{share:+.1f} %"
            changes.append(say("{figure} {by}", figure=Message(text), by=by))
    if not titles or not changes:
        return None
    return StressFinding("changed", say("{news}: {changes}", news=titles, changes=tuple(changes)))


def named(key: str) -> MessageLike:
    return say("driver") if key == "driver" else {"cuda": "CUDA", "wsl": "WSL"}.get(key, key)


def judged(result: StressResult, earlier: Sequence[StressResult]) -> StressResult:
    regressed, change = tuple(regressions(result, earlier)), change_of_driver(result, earlier)
    findings = (*result.findings, *regressed, *filter(None, (change,)))
    return replace(result, findings=findings, verdict="findings" if regressed else result.verdict)


def remark(result: StressResult) -> MessageLike:
    """Return a remark on a run besides its verdict; empty for most."""
    return clauses(finding.text for finding in result.findings) or result.reason


def night(result: StressResult) -> MessageLike:
    facts: dict[str, Fact | None] = {"gpu": result.gpu, "verdict": Message(VERDICTS[result.verdict])}
    facts |= {"began_wall": result.wall, "usable_bytes": result.values.get("usable_bytes")}
    brief = filled(template("GPU {gpu}: {verdict}, {began_wall}[, {usable_bytes} usable]"), facts)
    return clauses((brief, remark(result)))


def _shown(name: str, value: float) -> str:
    return f"{value / 2**30:.2f} GiB" if name.endswith("_bytes") else f"{value / 1e9:.0f} GB/s"


def by_key(runs: Sequence[StressResult]) -> dict[str, list[StressResult]]:
    """Return the undisturbed runs by driver and torch, in order of their first night."""
    runs_by_key: dict[str, list[StressResult]] = {}
    for run in filter(undisturbed, runs):
        name = " ".join(filter(None, [f"gpu{run.gpu}", run.key.get("driver"), f"torch {run.key.get('torch')}"]))
        runs_by_key.setdefault(name, []).append(run)
    return runs_by_key


def differences(columns: Mapping[str, Sequence[StressResult]]) -> list[dict[str, Any]]:
    """Return the median of each watched figure in each column, and the change from the first to the last."""
    rows = []
    for name, _, text, _, _ in WATCHED:
        medians = [median(known) if (known := _figures(name, runs)) else None for runs in columns.values()]
        first, last = (medians[0], medians[-1]) if medians else (None, None)
        change = last / first - 1 if first and last is not None and len(medians) > 1 else None
        unit = "bytes" if name.endswith("_bytes") else "bytes_per_second"
        rows.append({"name": text, "unit": unit, "values": medians, "change": change})
    return rows


def level_of(runs: Sequence[StressResult]) -> tuple[Level, MessageLike]:
    """Return the level after these runs of one GPU, oldest first, and why."""
    telling = next((run.findings for run in reversed(runs) if run.complete or run.findings), ())
    if trouble := [finding for finding in telling if finding.kind != "changed"]:
        severe = any(finding.kind in ("errors", "hung") for finding in trouble)
        return (Level.CRITICAL if severe else Level.WARNING), clauses(f.text for f in trouble)
    if runs:
        good = [run.wall for run in runs if run.verdict == "passed"]
        age = runs[-1].wall - (good[-1] if good else runs[0].wall)
        if age > LATE_SECONDS:
            why = runs[-1].reason or Message(VERDICTS[runs[-1].verdict])
            return Level.WARNING, say("no run has passed for {age_seconds} ({why})", age_seconds=age, why=why)
    return Level.OK, say("the last run passed")


def course(values: Mapping[str, float]) -> Iterator[MessageLike]:
    """Yield the card's state during a run, as far as it is known."""
    return (word(values[name]) for name, word in COURSE.items() if name in values)


def made_with(key: Mapping[str, str]) -> Iterator[MessageLike]:
    """Yield mode, versions and machine of a run."""
    for name, value in key.items():
        if name == "mode" and value in MODES:
            yield Message(MODES[value])
        elif name == "wsl":
            yield say("under WSL") if value == "yes" else say("not under WSL")
        elif name == "reserve_bytes" and value.isdecimal():
            yield say("{reserve_bytes} deliberately left free", reserve_bytes=int(value))
        elif name == "engine":
            yield say("test version {version}", version=value)
        elif value:
            yield say("{name} {version}", name=named(name), version=value)
