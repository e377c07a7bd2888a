"""A process that dies at any moment loses at most what it had not yet committed."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from wslgpud.store import Store

ROUNDS = 100


@pytest.mark.slow
def test_kill_9_at_random_moments_loses_no_confirmed_sample(made, file, settings):
    """Kill a writer again and again over one file.

    What it had confirmed must be there, each tick whole and once.
    """
    chance = random.Random(7)
    confirmed: set[int] = set()
    sent = 0
    with subprocess.Popen(
        [sys.executable, made.__file__, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as victims:
        for _ in range(ROUNDS):
            ticks = range(sent, sent + chance.randrange(30, 300))
            sent = ticks.stop
            confirmed |= _killed_at_work(victims, ticks, chance)
            with closing(sqlite3.connect(file)) as database:
                assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        victims.stdin.close()

    with Store(file, settings, host_name="pc") as store:
        kept = [[p.value for p in store.reader.read(ref, 0, 1e10)] for ref in store.reader.series("made_bytes")]
        assert store.previous_run.clean is False
    assert len(kept) == 50
    assert all(values == kept[0] for values in kept), "a tick is written whole or not at all"
    assert len(set(kept[0])) == len(kept[0]), "a tick is written once"
    assert len(confirmed) > 10 * ROUNDS
    assert confirmed <= set(kept[0])


def _killed_at_work(victims, ticks, chance):
    """Have ``ticks`` written, kill the writer at some point, return the ticks it had confirmed."""
    victims.stdin.write(f"{ticks.start} {ticks.stop}\n")
    victims.stdin.flush()
    word, process = victims.stdout.readline().split()
    assert word == "writer"
    written = ticks.start - 1
    for _ in range(chance.randrange(1, len(ticks) // 10)):
        written = int(victims.stdout.readline().split()[1])
    time.sleep(chance.random() * 0.005)  # somewhere within a commit, not always behind it
    os.kill(int(process), signal.SIGKILL)
    while (line := victims.stdout.readline()) != "gone\n":
        written = int(line.split()[1])
    return set(range(ticks.start, written + 1))
