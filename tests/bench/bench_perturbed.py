"""The risk engine on altered recordings: faster, slower, sampled less often, with gaps, jitter or noise.

    python -m tests.bench.bench_perturbed FOLDER...

Each folder holds traces with their truths. Prints the table of wslgpud/risk/README.md, which shows the loss of a rule
fitted to absolute seconds, bytes or one sampling interval.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.bench.scoring import Truth, score_engine, truth_beside, without_psi
from wslgpud.model import Observation
from wslgpud.risk.trace import read_trace, replay

Change = Callable[[Iterable[Observation]], Iterator[Observation]]


def stretched(factor: float) -> Change:
    """Slow everything down by a factor, counters included."""
    return lambda seen: (replace(o, t=factor * o.t) for o in seen)


def every(seconds: float) -> Change:
    def change(seen: Iterable[Observation]) -> Iterator[Observation]:
        due = 0.0
        for o in seen:
            if o.t >= due - 0.1:
                due = max(due + seconds, o.t)
                yield o

    return change


def dropped(share: float) -> Change:
    def change(seen: Iterable[Observation]) -> Iterator[Observation]:
        rng = random.Random(1)
        return (o for o in seen if rng.random() >= share)

    return change


def stuttering(start: float, seed: int = 4) -> Change:
    """From ``start`` on, hang the machine for 6 to 20 s between samples, without PSI and vmstat."""

    def change(seen: Iterable[Observation]) -> Iterator[Observation]:
        rng, due = random.Random(seed), start
        for o in seen:
            if o.t < start or o.t >= due:
                due = o.t + rng.uniform(6.0, 20.0)
                yield replace(o, psi={}, vm=None)

    return change


def jittered(seconds: float) -> Change:
    """Delay the timestamps of samples as on a busy machine, preserving their order."""

    def change(seen: Iterable[Observation]) -> Iterator[Observation]:
        rng, last = random.Random(2), -1.0
        for o in seen:
            last = max(last + 1e-3, o.t + rng.uniform(0.0, seconds))
            yield replace(o, t=last)

    return change


def noisy(share: float) -> Change:
    """Add noise to the use, with ``share`` of the capacity as two standard deviations, as a desktop does."""

    def change(seen: Iterable[Observation]) -> Iterator[Observation]:
        rng, drift = random.Random(3), 0.0
        for o in seen:
            drift = 0.9 * drift + rng.gauss(0.0, 0.5 * share * (1 - 0.81) ** 0.5)
            ram = o.ram
            if ram is not None:
                left = ram.available + int(drift * ram.total)
                ram = replace(ram, available=min(ram.total, max(0, left)))
            gpus = tuple(
                gpu
                if gpu.used_bytes is None or not gpu.total_bytes
                else replace(
                    gpu,
                    used_bytes=min(gpu.total_bytes, max(0, gpu.used_bytes + int(drift * gpu.total_bytes))),
                    free_bytes=None,
                )
                for gpu in o.gpus
            )
            yield replace(o, ram=ram, gpus=gpus)

    return change


def after_idling(seconds: float) -> Change:
    """Prepend a period in which the first sample does not change."""

    def change(seen: Iterable[Observation]) -> Iterator[Observation]:
        first = True
        for o in seen:
            if first:
                yield from (replace(o, t=o.t - seconds + 0.5 * i) for i in range(int(2 * seconds)))
                first = False
            yield o

    return change


def without_names(seen: Iterable[Observation]) -> Iterator[Observation]:
    for o in seen:
        yield replace(o, processes=(), gpus=tuple(replace(gpu, processes=()) for gpu in o.gpus))


def larger(factor: int) -> Change:
    """Scale all sizes of RAM, swap and GPUs."""

    def scaled(record: Any) -> Any:
        sizes = {name: getattr(record, name) for name in record.__slots__}
        return replace(record, **{k: factor * v for k, v in sizes.items() if k != "index" and type(v) is int})

    def change(seen: Iterable[Observation]) -> Iterator[Observation]:
        for o in seen:
            yield replace(
                o, ram=o.ram and scaled(o.ram), swap=o.swap and scaled(o.swap), gpus=tuple(map(scaled, o.gpus))
            )

    return change


CHANGES: dict[str, tuple[Change, float]] = {
    "as recorded": (stretched(1.0), 1.0),
    **{f"{1 / factor:g} times as fast": (stretched(factor), factor) for factor in (0.5, 0.25)},
    **{f"{factor:g} times as slow": (stretched(factor), factor) for factor in (2.0, 5.0, 20.0)},
    **{f"sampled every {seconds:g} s": (every(seconds), 1.0) for seconds in (1.0, 2.0, 5.0)},
    **{f"{100 * share:g} % of the samples lost": (dropped(share), 1.0) for share in (0.2, 0.5)},
    "up to 0.2 s late": (jittered(0.2), 1.0),
    "use breathes by 1 %": (noisy(0.01), 1.0),
    "half an hour of idling before": (after_idling(1800.0), 1.0),
    "a thousand times the memory": (larger(1000), 1.0),
    "no processes known": (without_names, 1.0),
    "no PSI": (without_psi, 1.0),
}
"""What is done to the observations, and how many times as slow it makes them."""


def slower(truth: Truth, factor: float) -> Truth:
    """Return the truth of a stretched recording."""
    return replace(
        truth,
        onset=factor * truth.onset,
        events={resource: factor * t for resource, t in truth.events.items()},
        onsets={resource: factor * t for resource, t in truth.onsets.items()},
    )


def main() -> int:
    paths = [path for folder in sys.argv[1:] for path in sorted(Path(folder).glob("*.jsonl.gz"))]
    loaded = [(truth, list(read_trace(path))) for path in paths if (truth := truth_beside(path)) is not None]
    print(
        "| the same recordings | in time | median lead | silent with alarm | alarms per event"
        " | critical before | false criticals | not in time |"
    )
    print("|---" * 8 + "|")
    stands_still = {"stands still for 6 to 20 s once half is gone, no PSI": (None, 1.0)}
    for name, (change, factor) in (CHANGES | stands_still).items():
        pairs = (
            (slower(truth, factor), replay(truth.name, (change or stuttering(truth.onset))(seen)))
            for truth, seen in loaded
        )
        line = score_engine(name, pairs)
        w, c = line.warning, line.critical
        events = max(1, len(w.leads))
        print(
            f"| {name} | {w.in_time} of {len(w.leads)} | {w.median_lead or 0.0:.0f} s"
            f" | {w.quiet_with_alarm} of {w.quiet_traces} | {w.alarms_before_events / events:.2f}"
            f" | {sum(lead > 0 for lead in c.leads)} | {len(c.noisy)} | {', '.join(w.late)} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
