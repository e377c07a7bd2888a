"""How often the brake acts in time and needlessly, compared with the critical level, over all recordings.

    python -m tests.bench.bench_brake [FILE or FOLDER]...

Default: all recordings below ``tests/traces`` that have a ``.truth.json``. "In time" is before the first exhaustion.
"Needless" counts recordings without exhaustion: those that come close and recover (fair) and the others (silent).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench.scoring import Truth, truth_beside
from wslgpud.brake.policy import resource_kind, should_pause
from wslgpud.model import Forecast, Level
from wslgpud.risk.trace import Replay, read_trace, replay, trace_name

TRACES = Path(__file__).parents[1] / "traces"
RULES: dict[str, Callable[[Forecast], bool]] = {"critical": lambda f: f.level >= Level.CRITICAL, "brake": should_pause}


def judge(seen: Replay, truth: Truth, due: Callable[[Forecast], bool], found: Counter[str]) -> None:
    """Add one recording to a rule's counts."""
    acted = {resource: [t for t, f in points if due(f)] for resource, points in seen.forecasts.items()}
    for resource, when in truth.events.items():
        kind = resource_kind(resource)
        found[f"{kind} events"] += 1
        before = [t for t in acted.get(resource, ()) if t <= when]
        found[f"{kind} in time"] += bool(before)
        found[f"{kind} within a second"] += bool(before) and when - before[0] < 1.0
    if not truth.events:
        quiet = "fair" if truth.tolerated else "silent"
        found[quiet] += 1
        found[f"{quiet} needless"] += any(acted.values())


def main(arguments: Sequence[str]) -> int:
    named = [Path(argument) for argument in arguments] or [TRACES]
    paths = [path for one in named for path in (sorted(one.rglob("*.jsonl.gz")) if one.is_dir() else [one])]
    counts = {name: Counter[str]() for name in RULES}
    for path in paths:
        if (truth := truth_beside(path)) is not None:
            seen = replay(trace_name(path), read_trace(path))
            for name, due in RULES.items():
                judge(seen, truth, due, counts[name])
    for name, found in counts.items():
        print(f"{name}:")
        for kind in ("ram", "gpu", "cgroup"):
            told = f"{found[f'{kind} in time']} of {found[f'{kind} events']} in time"
            print(f"  {kind:<8} {told}, {found[f'{kind} within a second']} of them by less than a second")
        for quiet in ("fair", "silent"):
            print(f"  {quiet:<8} {found[f'{quiet} needless']} of {found[quiet]} needless")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
