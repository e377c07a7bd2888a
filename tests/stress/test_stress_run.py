"""A run from the first gate to the result, with a machine that is idle and workers of all kinds."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.sampling.test_assessor import SteppingClock
from tests.stress.support import MIB, gpu
from tests.support.accounts import shared_python
from wslgpud.config import Stress
from wslgpud.host import Host, SystemClock
from wslgpud.model import Reading
from wslgpud.sources import gpu as source
from wslgpud.stress.comparison import comparable
from wslgpud.stress.find_python import Python, command
from wslgpud.stress.result import WorkerOutput, sold_bytes
from wslgpud.stress.stress_run import Runner, job_of, ladder, reserve_bytes
from wslgpud.stress.telemetry import Recent

FAITHFUL = """
import json, sys
job = json.loads(sys.stdin.readline())
def say(event, **facts): print(json.dumps({"event": event, **facts}), flush=True)
say("begin", free=14 << 30, total=16 << 30, torch="2.13.0", cuda="13.0", pid=1)
say("filled", bytes=13 << 30, chunks=52)
say("pattern", name="address", verified=13 << 30, bad_words=0, checks=1, seconds=0.1)
say("released", still_taken=0, free_less=0, seconds=0.0)
say("end", outcome="done", why="")
"""


class Alone(Host):
    """This machine without anybody else's programs: other tests may load torch, and a run gives way."""

    def names(self, path: str, most: int | None = None) -> list[str]:
        return [] if path == "/proc" else super().names(path, most)


class IdleGpu:
    """Notes a sample many times a second, as a daemon does each second."""

    def __init__(self, **changes):
        self.recent, self.changes = Recent(), changes
        self.recent.add(time.monotonic() - 3600.0, [gpu(**changes)])  # it has been looked at for long
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._note, daemon=True)
        self._say()
        self._thread.start()

    def _say(self):
        self.recent.add(time.monotonic(), [gpu(**self.changes)])

    def _note(self):
        while not self._done.wait(0.01):
            self._say()

    def close(self):
        self._done.set()
        self._thread.join()


@pytest.fixture
def runner(tmp_path):
    opened, python = [], str(shared_python())

    def make(script=FAITHFUL, settings=None, **changes):
        idle = IdleGpu(**changes)
        opened.append(idle)
        worker = tmp_path / "worker.py"
        worker.write_text(script)
        given = settings or Stress(python=python, settle_seconds=60.0)
        return Runner(
            Alone(), given, tmp_path, idle.recent, worker=worker, lock_folder=tmp_path, environ={"PATH": "/usr/bin"}
        )

    yield make
    for idle in opened:
        idle.close()


def test_a_faithful_worker_makes_a_passed_run(runner):
    result = runner().run(gpu(), "nightly")

    assert (result.verdict, result.reason) == ("passed", "")
    assert result.values["verified_bytes"] == 13 << 30
    assert dict(result.key) == {
        "driver": "",
        "mode": "nightly",
        "engine": "1",
        "wsl": "no",
        "torch": "2.13.0",
        "cuda": "13.0",
    }


def test_no_worker_starts_on_a_busy_gpu(runner, tmp_path):
    started = tmp_path / "started"
    result = runner(f"open({str(started)!r}, 'w')", utilization_ratio=0.9).run(gpu(), "nightly")

    assert result.verdict == "skipped"
    assert "the GPU is busy" in str(result.reason)
    assert not started.exists()


def test_a_gpu_that_becomes_busy_meanwhile_is_left_alone(runner, monkeypatch):
    one = runner()
    one.recent = Recent()
    one.recent.add(time.monotonic(), [gpu()])
    busy = iter([False, True])

    def somebody_waits(_lock, _host):
        one.recent.add(time.monotonic(), [gpu(utilization_ratio=0.9)])
        return next(busy)

    monkeypatch.setattr("wslgpud.stress.conditions.GpuLock.wanted", somebody_waits)
    result = one.run(gpu(), "nightly")

    assert (result.verdict, "the GPU is busy" in str(result.reason)) == ("skipped", True)
    assert list(busy) == []


@pytest.mark.parametrize(("ago_seconds", "keeps_it_away"), [(30.0, True), (90.0, False)])
def test_an_error_of_the_driver_keeps_a_run_away_for_a_minute(runner, ago_seconds, keeps_it_away):
    starting = runner()
    starting.recent.last_error_mono = time.monotonic() - ago_seconds
    result = starting.run(gpu(), "nightly")

    assert ("errors of the GPU driver" in str(result.reason)) == keeps_it_away
    assert result.verdict == ("skipped" if keeps_it_away else "passed")


WAITING = FAITHFUL.replace(
    'say("filled"', 'sys.stdin.readline()\nsay("end", outcome="left", why="")\nsys.exit()\nsay("x"'
)


def test_an_error_of_the_driver_during_a_run_ends_it(runner):
    one = runner(WAITING)

    def fail(_):
        one.recent.last_error_mono = time.monotonic()

    result = one.run(gpu(), "nightly", fail)

    assert (result.verdict, str(result.reason)) == ("left", "the kernel reports errors of the GPU driver")


def test_a_driver_that_falls_silent_during_a_run_ends_it(runner):
    one = runner(WAITING)

    class Ahead(SystemClock):
        seconds = 0.0

        def mono(self):
            return super().mono() + self.seconds

    clock = Ahead()
    one.host = Alone(clock=clock)
    result = one.run(gpu(), "nightly", lambda line: setattr(clock, "seconds", 0.0 if line["event"] == "end" else 60.0))

    assert result.verdict == "left"
    assert str(result.reason).startswith("the driver has not answered for ")


def test_a_card_that_is_read_twice_a_minute_is_tested_too(runner, monkeypatch):
    """sampling.interval_seconds may be a minute: between two samples the driver is not silent."""
    monkeypatch.setattr("wslgpud.stress.stress_run.AFTER_SECONDS", 0.0)
    one = runner(settings=Stress(python=str(shared_python()), settle_seconds=30.0))
    one.recent = Recent()
    for ago_seconds in (45.0, 15.0):
        one.recent.add(time.monotonic() - ago_seconds, [gpu()])

    assert one.run(gpu(), "nightly").verdict == "passed"


@pytest.mark.parametrize(
    ("looks", "counts", "waited_seconds"), [(False, True, [65.0]), (False, False, []), (True, True, [])]
)
def test_ecc_counters_are_read_once_more_at_the_end(runner, looks, counts, waited_seconds):
    """They are read once a minute, or when a sample is asked for."""
    one, waited = runner(), []
    (errors,) = (spec for spec in source.FED if spec.name == "gpu_ecc_errors")

    class Passing(threading.Event):
        def wait(self, timeout=None):
            waited.append(timeout)
            return False

    def note(_=None):
        readings = [Reading(errors, 0, ("0", "GPU-1", "corrected"))] if counts else []
        one.recent.add(time.monotonic(), [gpu()], lambda: readings)

    one.stop, one.look = Passing(), note if looks else None
    assert one.run(gpu(), "nightly", note).verdict == "passed"

    assert [seconds for seconds in waited if seconds > 1.0] == waited_seconds


@pytest.mark.parametrize(
    ("before", "seen", "waited_seconds"),
    [
        (1000 * MIB, [1064 * MIB + 1, 1064 * MIB, 1000 * MIB], 1),
        (1000 * MIB, [2000 * MIB] * 9, 5),
        (None, [64 * MIB + 1, 64 * MIB], 1),
        (1000 * MIB, [None, 1000 * MIB], 0),
    ],
)
def test_a_card_is_watched_until_its_memory_is_back(tmp_path, before, seen, waited_seconds):
    """NVML may show a worker's memory for a while after its end."""
    clock, recent, looks = SteppingClock(), Recent(), iter(seen)
    recent.add(clock.now - 1.0, [gpu(used_bytes=1000 * MIB)])  # older than the worker's end

    class Passing(threading.Event):
        def wait(self, timeout=None):
            clock.now += 1.0
            return False

    def look():
        recent.add(clock.now, [gpu(used_bytes=next(looks))])

    one = Runner(Host(tmp_path, clock=clock), Stress(), tmp_path, recent, stop=Passing(), look=look)
    after = one._after(gpu(used_bytes=before))

    assert after.used_bytes == seen[waited_seconds]
    assert clock.now - SteppingClock().now == waited_seconds


def test_without_torch_nothing_runs_and_the_reason_is_named(runner):
    result = runner(settings=Stress(python="/no/such/python", settle_seconds=1.0)).run(gpu(), "nightly")

    nobodys = Stress(python="~nobody-of-this-name/python", settle_seconds=1.0)

    assert result.verdict == "skipped"
    assert str(result.reason) == "the Python that is named, /no/such/python, is not a program"
    assert "is not a program" in str(runner(settings=nobodys).run(gpu(), "nightly").reason)


def test_a_daemon_that_ends_takes_its_worker_along(runner):
    one = runner(WAITING)
    threading.Timer(0.3, one.stop.set).start()
    result = one.run(gpu(), "nightly")

    assert (result.verdict, str(result.reason)) == ("left", "wslgpud is shutting down")


def test_a_worker_that_crashes_makes_a_failed_run(runner):
    result = runner("import os; os.kill(os.getpid(), 11)").run(gpu(), "nightly")

    assert (result.verdict, str(result.reason)) == ("failed", "the worker was killed by SIGSEGV")


def test_wrong_data_is_reported_even_when_the_worker_hangs(runner, monkeypatch, tmp_path):
    stuck = {"again": "1", "belongs": None, "expected": "0", "got": "1", "stuck": "1"}
    bad = {"event": "bad", "chunk": 3, "words": 1, "flips": {"1": 1}, "samples": [stuck]}
    monkeypatch.setattr(
        "wslgpud.stress.stress_run.supervise", lambda *_, **__: WorkerOutput([bad], "silent for 15 s", hung_pid=99)
    )
    one = runner()
    one.state_folder = tmp_path / "worker.py" / "gone"
    result = one.run(gpu(), "nightly")

    assert result.verdict == "findings"
    assert [finding.kind for finding in result.findings] == ["errors", "hung"]


def test_a_worker_that_cannot_be_ended_keeps_further_runs_away(runner, monkeypatch):
    one = runner()
    assert [one.run(gpu(), "nightly").verdict for _ in range(2)] == ["passed", "passed"]
    monkeypatch.setattr(
        "wslgpud.stress.stress_run.supervise",
        lambda *_, **__: WorkerOutput([], "silent for 15 s", hung_pid=os.getpid()),
    )
    verdicts = [one.run(gpu(), "nightly").verdict for _ in range(2)]

    assert verdicts == ["failed", "skipped"]


def test_nights_that_leave_more_memory_free_are_another_measure(runner):
    usual = runner()
    larger = runner(settings=Stress(python=usual.settings.python, reserve_bytes=2 << 30))

    assert comparable(usual.run(gpu(), "nightly"), usual.run(gpu(), "nightly"))
    assert not comparable(usual.run(gpu(), "nightly"), larger.run(gpu(), "nightly"))


def test_the_worker_sees_its_gpu_alone():
    started = command(Python(Path(sys.executable), None), "GPU-7", {})

    assert started.environment["CUDA_VISIBLE_DEVICES"] == "GPU-7"


def test_sizes_follow_the_card():
    assert [size >> 30 for size in ladder(16303 * MIB)] == [2, 5, 8, 10, 12, 14]
    assert [round(size / 2**30) for size in ladder(143771 * MIB)][-1] == 123


@pytest.mark.parametrize(
    ("total", "wsl", "expected"), [(16 << 30, True, 1 << 30), (4 << 30, True, 512 << 20), (16 << 30, False, 64 << 20)]
)
def test_more_is_left_free_under_wsl(total, wsl, expected):
    assert reserve_bytes(total, 0, wsl=wsl) == expected
    assert reserve_bytes(total, 777, wsl=wsl) == 777


#: cards by the size that they are sold with, in GB
CARDS = {
    "GT 710": 1,
    "GTX 1050": 2,
    "GTX 1060": 3,
    "GTX 1650": 4,
    "Quadro P2000": 5,
    "RTX 2060": 6,
    "RTX 4060": 8,
    "RTX 3080": 10,
    "GTX 1080 Ti": 11,
    "RTX 3060": 12,
    "RTX 5080": 16,
    "RTX A4500": 20,
    "RTX 4090": 24,
    "RTX 5090": 32,
    "A100 PCIe": 40,
    "RTX A6000": 48,
    "Jetson AGX Orin": 64,
    "H100 PCIe": 80,
    "H100 NVL": 94,
    "RTX PRO 6000": 96,
    "GB10": 128,
    "H200": 141,
    "GH200": 144,
    "B200": 180,
    "GB200": 192,
    "B300": 288,
}


def test_a_card_slightly_below_its_nominal_size_is_accepted():
    assert {name: sold_bytes((gb << 30) * 98 // 100) >> 30 for name, gb in CARDS.items()} == CARDS
    assert sold_bytes(500 << 30) == 500 << 30


@pytest.mark.parametrize(
    ("mode", "card_bytes", "settings", "expected"),
    [
        ("quick", 16 << 30, Stress(), (256, 2, 0, 0.0, 0.0, 0)),
        ("nightly", (64 << 30) - 1, Stress(probe_beyond=True), (256, 3, 2, 2.0, 0.0, 2)),
        ("full", 64 << 30, Stress(soak_seconds=45.0), (1024, 3, 20, 15.0, 45.0, 0)),
    ],
)
def test_a_fuller_mode_takes_longer_and_chunks_grow_with_cards(mode, card_bytes, settings, expected):
    asked = job_of(gpu(total_bytes=card_bytes), settings, mode, wsl=False)
    names = ("repeats", "offsets", "retention_seconds", "soak_seconds", "beyond")

    assert (asked["chunk"] // MIB, *(asked[name] for name in names)) == expected
