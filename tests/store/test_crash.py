"""A process that dies at any moment loses at most what it had not yet committed."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from contextlib import closing

from wslgpud.store import Store

ROUNDS = 25


def test_kill_9_at_random_moments_loses_nothing_that_was_confirmed(made, file, settings):
    """Kill a writer again and again over one file.

    What it had confirmed must be there, each tick whole and once.
    """
    chance = random.Random(7)  # noqa: S311 - moments, not secrets
    confirmed: set[int] = set()
    sent = 0
    for _ in range(ROUNDS):
        ticks = range(sent, sent + chance.randrange(20, 200))
        sent = ticks.stop
        confirmed |= _killed_at_work(made, file, ticks, answers=chance.randrange(1, 3))
        with closing(sqlite3.connect(file)) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)

    with Store(file, settings, host_name="pc") as store:
        kept = [[p.value for p in store.read(ref, 0, 1e10)] for ref in store.series("made_bytes")]
    assert len(kept) == 50
    assert all(values == kept[0] for values in kept), "a tick is written whole or not at all"
    assert len(set(kept[0])) == len(kept[0]), "a tick is written once"
    assert len(confirmed) > 5 * ROUNDS
    assert confirmed <= set(kept[0])


def _killed_at_work(made, file, ticks, answers):
    """Have ``ticks`` written, kill the writer in the middle, return the ticks it had confirmed."""
    writer = subprocess.Popen(
        [sys.executable, made.__file__, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    writer.stdin.write("".join(f"{number}\n" for number in ticks))
    writer.stdin.flush()
    seen = [int(writer.stdout.readline()) for _ in range(answers)]
    writer.kill()
    seen += map(int, writer.stdout)  # what it had said before the signal came
    writer.stdin.close()
    writer.stdout.close()
    writer.wait()
    return set(range(ticks.start, max(seen) + 1))
