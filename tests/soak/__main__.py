"""A month of the daemon's life with faults at random, in minutes: is anything lost, forgotten or growing?

    python -m tests.soak --ticks 100000 --days 30 --seed 1

The whole daemon runs (store, server, alerts, NVML child) on a machine whose files, clock and faults are the
test's; only time is not real. Exit status 1: a promise was broken, and which. Ctrl-C ends it early, with a
verdict on what there is.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.soak.faults import Fault, Stage, all_faults
from tests.soak.machine import SoakClock, SoakHost
from tests.support.receivers import webhook
from wslgpud.app.daemon import Daemon
from wslgpud.config import Config
from wslgpud.model import Level, Transition
from wslgpud.sources.memory import MAJOR_FAULTS
from wslgpud.store import engines, upkeep, writer

FAKE = Path(__file__).parents[1] / "fake_nvml" / "fake_nvml.c"
#: time for a rule to open, and after the end for it to close: the dearest need ten minutes of quiet
GRACE_SECONDS = 2 * 3600.0
#: faults that are played at the same time
AT_ONCE = 3
#: from here on nothing may grow; before, caches and the list of series fill
WARM_SHARE = 0.3


@dataclass
class Case:
    """A fault that is being played, or whose end is waited for."""

    fault: Fault
    began_mono: float
    ended_mono: float | None = None
    opened: bool = False


@dataclass
class Heard:
    """The daemon's messages."""

    levels: dict[tuple[str, str], Level] = field(default_factory=dict)
    opened: set[tuple[str, str]] = field(default_factory=set)
    transitions: int = 0
    complaints: list[str] = field(default_factory=list)

    def note(self, row: Transition) -> None:
        self.transitions += 1
        self.levels[row.rule, row.resource] = row.new
        if row.new > Level.OK:
            self.opened.add((row.rule, row.resource))


class Soak:
    """The daemon, its machine, and who plays the faults."""

    def __init__(self, folder: Path, hook: Any, seed: int) -> None:
        library = folder / "libnvidia-ml.so.1"
        options = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC"]
        subprocess.run(["cc", *options, "-o", library, FAKE, "-ldl"], check=True)
        self.clock, self.heard, self.done = SoakClock(), Heard(), Counter[str]()
        self.host = SoakHost(library, self.clock)
        defaults = Config()
        config = replace(
            defaults,
            sampling=replace(
                defaults.sampling, interval_seconds=40.0, nvml_library=str(library), gpu_timeout_seconds=0.5
            ),
            server=replace(defaults.server, port=0),
            store=replace(defaults.store, raw_days=3650.0, commit_seconds=1.0),
            alerts=replace(
                defaults.alerts, alertmanager_urls=(hook.url,), desktop="off", windows_toast="off", language="en"
            ),
            stress=replace(defaults.stress, schedule="off"),
        )
        # Of the machine's time much passes in little of ours.
        writer.RETRY_SECONDS, engines.BUSY_SECONDS, upkeep.INTERVAL_SECONDS = (0.02,), 0.05, 1.0
        self.daemon = Daemon(config, self.host, folder / "state", {})
        self.dice = random.Random(seed)
        self.hook = hook
        self.cases: list[Case] = []
        self.sampled = bytearray(1_000_000)  # by tick; a set of numbers would grow by megabytes itself
        self.marks: list[dict[str, float]] = []
        self.early: Counter[str] = Counter()
        self.enough = False

    def run(self, ticks: int, days: float) -> None:
        """Play until there have been so many ticks and days."""
        with self.daemon as daemon:
            daemon.tick.store._writer._interval_seconds = 0.05
            told = daemon.tick.store.outbox.record
            daemon.tick.store.outbox.record = lambda row, *rest: (self.heard.note(row), told(row, *rest))[1]
            self.stage = Stage(self.host, self.clock, self.hook, daemon.url, self.dice, self._forget_peaks)
            self.began, faults = self.clock.mono_now, all_faults()
            more = True
            while more or self.cases:
                more = not self.enough and (self.host.tick < ticks or self.days < days)
                self._play(faults if more else [])
                self._tick()
                if self.host.tick % max(1, ticks // 60) == 0:
                    self._mark()
                    if self.host.tick <= WARM_SHARE * ticks:
                        self.early = objects()
            for _ in range(300):  # quiet: all that waits is sent and written
                self._tick()
                time.sleep(0.002)
            daemon.tick.store.flush(60)
            self.late = objects()
            self.waiting = sum(daemon.tick.alerts.dispatcher.waiting().values())
            self.outcomes = dict(daemon.tick.alerts.dispatcher.counts)
            self.stats = daemon.tick.store.stats()
            self.open = {key for key, level in self.heard.levels.items() if level > Level.OK}
            reader = daemon.tick.store.reader
            (series,) = reader.series("page_major_faults")
            _, values = reader.columns(series, 0.0, 4e9)
            self.kept = Counter(int(value) for value in values)

    @property
    def days(self) -> float:
        return (self.clock.mono_now - self.began) / 86_400

    def _tick(self) -> None:
        self.host.tick += 1
        self.daemon.tick.run()
        memory = next(r for r in self.daemon.tick.latest.snapshot.reports if r.name == "memory")
        if memory.fresh:  # one that comes late on a busy machine counts with the next tick
            self.sampled[int(self.daemon.tick.latest.snapshot.value(MAJOR_FAULTS))] = 1
        self.clock.mono_now += self.daemon.tick.assessor.delay_seconds
        # Their waits are in the machine's time, which passes without them.
        self.daemon.tick.alerts.dispatcher.wake()
        self._wait_for_lanes()
        while self.daemon.tick.store.stats().queue_ticks > 500 and "writes refused" not in self._playing():
            time.sleep(0.002)

    def _wait_for_lanes(self) -> None:
        """Wait for things that are slow on a busy machine, like starting a child: days would pass meanwhile."""
        hung = {"/": "filesystem", "/proc": "processes"}
        skipped = {hung[path] for path in self.host.hanging}
        if "driver hangs" in self._playing():
            skipped.add("gpu")
            time.sleep(0.25)  # the hung child is ended by the real clock
        for name, lane in self.daemon.tick.assessor._sampler._lanes.items():
            if name not in skipped:
                lane.done.wait(60)

    def _forget_peaks(self) -> None:
        for key, tracker in self.daemon.tick.assessor._engine._trackers.items():
            if key != "ram":
                tracker.peaks.clear()

    def _playing(self) -> set[str]:
        return {case.fault.name for case in self.cases if case.ended_mono is None}

    def _play(self, faults: list[tuple[Fault, float]]) -> None:
        now = self.clock.mono_now
        for case in list(self.cases):
            self._go_on(case, now)
        groups = {case.fault.group for case in self.cases}
        free = [(fault, weight) for fault, weight in faults if fault.group not in groups]
        if free and len(self._playing()) < AT_ONCE and self.dice.random() < 0.03:
            (fault,) = self.dice.choices([f for f, _ in free], [w for _, w in free])
            self.heard.opened.discard(fault.rule)
            fault.begin(self.stage)
            self.cases.append(Case(fault, now))

    def _go_on(self, case: Case, now: float) -> None:
        fault, rule = case.fault, case.fault.rule
        case.opened = case.opened or rule in self.heard.opened or not rule[0]
        if case.ended_mono is None:
            fault.go_on(self.stage, (now - case.began_mono) / fault.seconds)
            if now - case.began_mono >= 1.2 * fault.seconds:
                fault.end(self.stage)
                case.ended_mono = now
        elif case.opened and self.heard.levels.get(rule, Level.OK) == Level.OK:
            self.done[fault.name] += 1
            self.cases.remove(case)
        elif now - case.ended_mono > GRACE_SECONDS:
            lacking = "recovery" if case.opened else "fault"
            self.heard.complaints.append(f"tick {self.host.tick}: {fault.name}: the {lacking} was not reported")
            self.cases.remove(case)

    def _mark(self) -> None:
        gc.collect()
        rss = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        mark = {
            "tick": self.host.tick,
            "rss_bytes": rss,
            "blocks": sys.getallocatedblocks(),
            "handles": sum(1 for _ in Path("/proc/self/fd").iterdir()),
            "threads": int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[17]),
            "quiet": not self._playing(),
        }
        self.marks.append(mark)
        shown = f"tick {mark['tick']:,}, day {self.days:.1f}: RSS {rss / 2**20:.1f} MiB"
        if "writes refused" not in self._playing():  # or our own lines would be, if they go to a file
            print(f"{shown}, {len(self.heard.complaints)} complaints", file=sys.stderr, flush=True)

    def broken(self) -> list[str]:
        """Return the promises that were broken."""
        found = list(self.heard.complaints)
        if missing := [tick for tick, seen in enumerate(self.sampled) if seen and tick not in self.kept]:
            found.append(f"{len(missing)} samples are not in the history, the first {missing[:5]}")
        if extra := [value for value, times in self.kept.items() if times > 1]:
            found.append(f"{len(extra)} samples are in the history twice, the first {extra[:5]}")
        if self.stats.dropped_ticks_total:
            found.append(f"{self.stats.dropped_ticks_total} samples were dropped")
        if self.stats.dropped_records_total:
            found.append(f"{self.stats.dropped_records_total} events and other records were dropped")
        given_up = {key: n for key, n in self.outcomes.items() if key[1] in ("expired", "refused")}
        if self.waiting or given_up:
            found.append(f"messages: {self.waiting} still wait, given up {given_up}")
        if self.open:
            found.append(f"still open at the end: {self.open}")
        early, late = self._parts()
        for name, most in (("handles", 8), ("threads", 3)):
            if min(m[name] for m in late) > max(m[name] for m in early) + most:
                found.append(f"{name} grow: {[m[name] for m in self.marks]}")
        return found

    def _parts(self) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
        warm = self.marks[int(WARM_SHARE * len(self.marks)) :]
        third = max(1, len(warm) // 3)
        return warm[:third], warm[-third:]

    def growth(self, name: str) -> float:
        """Return how much more of something there is at the end than after the warm-up."""
        early, late = (statistics.median(mark[name] for mark in part) for part in self._parts())
        return late - early


def objects() -> Counter[str]:
    """Count the objects known to the garbage collector, by type."""
    gc.collect()
    return Counter(type(one).__qualname__ for one in gc.get_objects())


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--ticks", type=int, default=100_000)
    options.add_argument("--days", type=float, default=30.0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--most-growth-bytes", type=int, default=4 << 20, help="of RSS after the warm-up")
    chosen = options.parse_args()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    logging.basicConfig(level=logging.CRITICAL)
    began, cpu = time.monotonic(), time.process_time()
    with tempfile.TemporaryDirectory() as folder, webhook() as hook:
        hook.got = type("Forgetful", (list,), {"append": lambda *_: None})()  # or we would grow ourselves
        soak = Soak(Path(folder), hook, chosen.seed)
        signal.signal(signal.SIGINT, lambda *_: setattr(soak, "enough", True))  # Ctrl-C: judge what there is
        try:
            soak.run(chosen.ticks, chosen.days)
        finally:  # whatever ended it is to be read, in a file too
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        broken = soak.broken()
    growth = {name: soak.growth(name) for name in ("rss_bytes", "blocks", "handles", "threads")}
    if growth["rss_bytes"] > chosen.most_growth_bytes:
        broken.append(f"memory grew by {growth['rss_bytes']:,.0f} bytes after the warm-up")
    took = f"{time.monotonic() - began:.0f} s, {time.process_time() - cpu:.0f} s of processor time"
    print(f"seed {chosen.seed}: {soak.host.tick:,} ticks, {soak.days:.1f} days in {took}")
    print("faults, each reported and its end too: " + ", ".join(f"{n} {c}" for n, c in sorted(soak.done.items())))
    print(f"{soak.heard.transitions} changes of level; messages {soak.outcomes}; {soak.hook.asked} requests")
    print("after the warm-up: " + ", ".join(f"{name} {value:+,.0f}" for name, value in growth.items()))
    held = soak.marks[-1]["rss_bytes"] / 2**20
    print(f"RSS {held:.1f} MiB at the end; {len(soak.kept):,} samples in the history")
    more = (soak.late - soak.early).most_common(8)
    print("objects that have become more: " + (", ".join(f"{name} {n:+,}" for name, n in more) or "none"))
    for promise in broken:
        print("BROKEN: " + promise)
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
