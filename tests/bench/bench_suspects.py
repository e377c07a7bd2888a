"""How often the right process is named when the driver does not report VRAM per process, and with what certainty.

    python -m tests.bench.bench_suspects [FOLDER] [--fit]

Uses the recordings of ``tests/shared_cards`` (made by ``tests/traces/record_company.py``): programs that share a card,
one of which keeps growing. Their VRAM is hidden, as under WSL2, and processes are listed every five seconds, as by the
daemon. The question is asked whenever the card has filled by another 8 % since the growth began. ``--fit`` prints
weights fitted to the recordings, and their quality for kinds of growth left out of the fit.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from wslgpud.risk.owners import UNKNOWN, WEIGHTS, CardSuspects, Clues, chances
from wslgpud.risk.trace import read_trace

FOLDER = Path(__file__).parents[1] / "shared_cards"
LIST_SECONDS, ASKED_SHARE = 5.0, 0.08
#: share of a card that programs allocate at once when they start
GROWN_SHARE = 0.1
#: clues with fitted weights
USED = ("new", "changed")


def hidden(observations):
    """Yield observations as under WSL2: no VRAM per process, and a process list every few seconds."""
    listed, t = (), -math.inf
    for seen in observations:
        if seen.t - t >= LIST_SECONDS:
            listed, t = seen.processes, seen.t
        cards = tuple(replace(card, processes=()) for card in seen.gpus)
        yield replace(seen, gpus=cards, processes=listed)


def questions(path):
    """Yield (clues of each suspect, index of the right one or None) for each moment of the question."""
    truth = json.loads(path.with_name(f"{path.name.split('.')[0]}.truth.json").read_text())
    card, told = CardSuspects(), list(read_trace(path))
    held = [{p.pid: p.used_bytes or 0 for p in seen.gpus[0].processes} for seen in told]
    asked = None
    for i, seen in enumerate(hidden(told)):
        gpu, own = seen.gpus[0], held[i].get(truth["grew"], 0)
        card.push(seen, gpu)
        since = next((k for k in range(i, -1, -1) if told[i].t - told[k].t >= 10.0), None)
        if since is None:
            continue
        lost = gpu.used_bytes - told[since].gpus[0].used_bytes
        mine = own - held[since].get(truth["grew"], 0)
        if lost < GROWN_SHARE * gpu.total_bytes or mine < 0.5 * lost:
            continue  # programs that start allocate some, too: only later growth is attributed
        if asked is not None and gpu.used_bytes - asked < ASKED_SHARE * gpu.total_bytes:
            continue
        asked = gpu.used_bytes
        clues = card.clues(seen, gpu, 10.0)
        pids = [process.pid for process, _ in clues]
        yield [clue for _, clue in clues], pids.index(truth["grew"]) if truth["grew"] in pids else None


def fitted(rows):
    """Return the maximum-likelihood weights, by gradient ascent with a small L2 penalty."""
    weights, unknown = [0.0] * len(USED), 0.0
    for _ in range(300):
        slopes, slope = [-0.005 * len(rows) * w for w in weights], 0.0
        for clues, right in rows:
            odds = chances(clues, Clues(*weights, 0.0), unknown)
            for place, (clue, chance) in enumerate(zip(clues, odds, strict=True)):
                off = float(place == right) - chance
                slopes = [s + off * c for s, c in zip(slopes, clue, strict=False)]
            slope += float(right is None) - (1 - sum(odds))
        weights = [w + 3.0 * s / len(rows) for w, s in zip(weights, slopes, strict=True)]
        unknown += 3.0 * slope / len(rows)
    return Clues(*weights, 0.0), unknown


def judged(rows, weights=WEIGHTS, unknown=UNKNOWN):
    """Return (probability of the likeliest, whether it was right, whether a random guess was) for each question."""
    found = []
    for clues, right in rows:
        if not clues:
            continue
        odds = chances(clues, weights, unknown)
        best = max(range(len(odds)), key=odds.__getitem__)
        found.append((odds[best], best == right, 1 / len(clues)))
    return found


def told(name, found):
    right, sure = sum(r for _, r, _ in found) / len(found), sum(s for s, _, _ in found) / len(found)
    guess = sum(g for _, _, g in found) / len(found)
    return f"{name:<28} {len(found):>5} {right:>7.0%} {sure:>8.0%} {guess:>12.0%}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--fit", action="store_true")
    given = parser.parse_args()
    kinds = defaultdict(list)
    for path in sorted(given.folder.glob("*.jsonl.gz")):
        kinds[path.name.split(".")[0].split("-")[-1]] += questions(path)
    rows = [row for found in kinds.values() for row in found]
    print(f"{'who grew':<28} {'asked':>5} {'named':>7} {'how sure':>8} {'mere chance':>12}")
    for kind, found in sorted(kinds.items()):
        if judged(found):
            print(told(kind, judged(found)))
    print(told("all", judged(rows)))
    by_certainty(judged(rows))
    for place, clue in enumerate(Clues._fields):
        alone = Clues(*(float(place == other) for other in range(len(Clues._fields))))
        apart = [row for row in rows if len({c[place] for c in row[0]}) > 1]
        if apart:
            print(told(f"  by '{clue}' alone", judged(apart, alone, -9.0)))
    if given.fit:
        weights, unknown = fitted(rows)
        print(weights, round(unknown, 2))
        apart = []
        for kind, found in kinds.items():
            others = [row for other, rest in kinds.items() if other != kind for row in rest]
            apart += judged(found, *fitted(others))
        print(told("each kind left out", apart))
        by_certainty(apart)


def by_certainty(found):
    for least, most in ((0.0, 0.5), (0.5, 0.8), (0.8, 1.01)):
        if some := [one for one in found if least <= one[0] < most]:
            print(told(f"  {least:.0%} to {min(most, 1.0):.0%} sure", some))


if __name__ == "__main__":
    main()
