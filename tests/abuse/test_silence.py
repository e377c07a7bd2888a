"""Nothing but a proven test of ours, for its time, makes the daemon look away from a card that runs full."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import built_library  # noqa: F401 - a fixture
from tests.sampling.test_assessor import SteppingClock
from tests.stress.support import MIB, gpu
from tests.stress.test_stress_run import FAITHFUL, IdleGpu
from tests.support.accounts import shared_python
from tests.support.daemons import eventually
from tests.support.elsewhere import Elsewhere, open_to_all, seen
from wslgpud.active_runs import CardsUnderTest, Note
from wslgpud.config import Config, Stress
from wslgpud.host import Host
from wslgpud.model import GpuSample, Level, Observation, Sample, Snapshot, SourceReport
from wslgpud.sampling.assessor import Assessor
from wslgpud.sources.procfs import Identity, Trust
from wslgpud.stress.conditions import GpuLock
from wslgpud.stress.stress_run import Runner

NOBODY, GROUP = 65534, 54321
SETTINGS = Stress(deadline_seconds=60.0, soak_seconds=20.0)
LIMIT_SECONDS = 80.0
ROOT = Trust(frozenset({0}))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


@pytest.fixture
def host(tmp_path: Path) -> Elsewhere:
    """This machine with a stopped clock, and without other programs' locks and notes."""
    return Elsewhere(open_to_all(tmp_path) / "shared", SteppingClock())


def lock_of(host: Host, number: int = 0) -> GpuLock:
    return GpuLock(number, host.path("/run/lock"))


@contextmanager
def another(act: Callable[[], object], uid: int | None = None, groups: tuple[int, ...] = ()) -> Iterator[int]:
    """Have another process, and another user's, do something and then wait; yield its pid."""
    ready, done = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        # Forked, not started: this Python may lie where other users may not go.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        try:
            os.close(done[1])
            if uid is not None:
                os.setgroups(groups)
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            act()
            os.write(ready[1], b"!")
            os.read(done[0], 1)
        finally:
            os._exit(0)
    os.close(ready[1])
    try:
        assert os.read(ready[0], 1) == b"!", "the other process has failed"
        yield pid
    finally:
        for end in (*done, ready[0]):
            os.close(end)
        os.waitpid(pid, 0)


def run(host: Elsewhere, *, card: int | None = 0, worker: str = "its own", kind: str = "stress") -> Callable[[], None]:
    """Return the behaviour of a stress run of card 0, or of a program pretending to be one."""

    def act() -> None:
        note = host.note(kind, "GPU 0", gpu=card).__enter__()
        if worker == "its own":
            note.worker(_sleeper())
        elif worker == "dead":
            note.worker(pid := _sleeper())
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        elif worker == "somebody else's":
            note.worker(os.getppid())
        NOTES.append(note)

    return act


#: of forked processes, whose connections stay open
NOTES: list[Note] = []


def cards_of(host: Elsewhere) -> Callable[[], set[int]]:
    """Return what says which cards are under test."""
    tests = CardsUnderTest(host, SETTINGS, host.runs.trust)
    return lambda: tests.look(host.runs.read())


def _sleeper() -> int:
    """Start a process that ends with its parent."""
    parent, pid = os.getpid(), os.fork()
    if not pid:
        while os.getppid() == parent:
            threading.Event().wait(0.05)
        os._exit(0)
    return pid


def test_a_stress_run_silences_its_card_only_as_long_as_allowed(host: Elsewhere) -> None:
    tests, quiet = cards_of(host), []
    with another(run(host)):
        for _ in range(int(LIMIT_SECONDS) + 20):
            quiet.append(tests() == {0})
            host.clock.now += 1.0

    assert quiet == [True] * (int(LIMIT_SECONDS) + 1) + [False] * 19
    assert tests() == set()


def test_memory_may_return_a_while_after_the_worker_has_ended(host: Elsewhere) -> None:
    tests = cards_of(host)
    stop = host.path("/run/lock") + "/stop"

    def act() -> None:
        note = host.note("stress", "GPU 0", gpu=0).__enter__()
        note.worker(pid := _sleeper())
        NOTES.append(note)

        def end(*_: object) -> None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            Path(stop).touch()

        signal.signal(signal.SIGUSR1, end)

    with another(act) as pid:
        assert tests() == {0}
        os.kill(pid, signal.SIGUSR1)
        eventually(lambda: Path(stop).exists(), "the worker's end")
        host.clock.now += 7.0
        assert tests() == {0}
        host.clock.now += 0.25
        assert tests() == set()


@pytest.mark.parametrize(
    "claim",
    [
        {"worker": "none"},
        {"worker": "dead"},
        {"worker": "somebody else's"},
        {"card": 1},
        {"card": None},
        {"kind": "guard"},
    ],
    ids=["no worker", "a dead worker", "another's child", "another card", "no card", "no test"],
)
def test_who_only_looks_like_a_run_is_not_left_alone(host: Elsewhere, claim: dict) -> None:
    tests = cards_of(host)
    with another(run(host, **claim)):
        for _ in range(10):
            assert 0 not in tests()
            host.clock.now += 1.0


@needs_root
def test_only_root_or_the_daemons_user_or_group_may_test_a_card(host: Elsewhere) -> None:
    def quiet(trust: Trust, groups: tuple[int, ...] = ()) -> bool:
        host.runs.trust = trust
        with another(run(host), NOBODY, groups):
            found = cards_of(host)() == {0}
            assert bool(seen(host)) is found  # nor does another's run hide the monitor's hints
        return found

    assert not quiet(ROOT)
    assert not quiet(Trust(frozenset({0}), GROUP))
    assert not quiet(ROOT, (GROUP,))
    assert quiet(Trust(frozenset({0}), GROUP), (GROUP,))
    assert quiet(Trust(frozenset({NOBODY})))


def test_a_setuid_program_is_nobodys_for_certain() -> None:
    who = Identity(7, 7, 1, alive=True, uids=frozenset({1000, 0}), groups=frozenset(), name="su")

    assert not ROOT.covers(who)
    assert ROOT.covers(who._replace(uids=frozenset({0})))
    assert not ROOT.covers(who._replace(uids=frozenset({1000})))


class Ramp:
    """A monitor that sees a card fill to 98 % within a minute."""

    def __init__(self, host: Host, clock: SteppingClock, number: int, patch: pytest.MonkeyPatch) -> None:
        self.assessor, self.clock, self.number = Assessor(Config(), host), clock, number
        patch.setattr(self.assessor._sampler, "tick", lambda **_: self._snapshot())
        self.used = 0.10

    def _snapshot(self) -> Snapshot:
        total = 16303 * MIB
        used = int(total * min(self.used, 0.98))
        card = GpuSample(self.number, "GPU-x", "a card", total, used, total - used)
        report = SourceReport("gpu", "ok", Sample(gpus=(card,)), self.clock.now, 0.0)
        return Snapshot(self.clock.wall(), self.clock.now, 0, (report,))

    def climb(self) -> Level:
        """Return the worst level on the way."""
        worst = Level.OK
        for _ in range(75):
            self.clock.now += 1.0
            self.used += 0.015
            state, _ = self.assessor.tick()
            worst = max([worst, *(f.level for f in state.forecasts)])
        self.state = state
        return worst


@pytest.fixture
def ramp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ramp]:
    """On this machine's real folders, for a card that no other test has."""
    number = 100_000 + os.getpid()
    clock = SteppingClock()
    found = Ramp(Host(clock=clock), clock, number, monkeypatch)
    yield found
    found.assessor.close()
    GpuLock(number).path.unlink(missing_ok=True)


def test_a_lock_held_by_another_program_silences_nothing(ramp: Ramp) -> None:
    training = subprocess.Popen(
        ["flock", GpuLock(ramp.number).path, "sh", "-c", "echo on; cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    training.stdout.readline()
    try:
        assert ramp.climb() == Level.EMERGENCY
    finally:
        training.communicate(b"")


WAITING = FAITHFUL.replace('say("filled"', 'sys.stdin.readline()\nsay("filled"')


class Idle(Elsewhere):
    """No other programs: other tests may load torch, and a run gives way."""

    def names(self, path: str, most: int | None = None) -> list[str]:
        return [] if path == "/proc" else super().names(path, most)


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    """A real run of card 0, whose worker waits until it is told to end."""
    idle = IdleGpu()
    worker = tmp_path / "worker.py"
    worker.write_text(WAITING)
    host = Idle(tmp_path / "shared")
    yield Runner(
        host,
        Stress(python=str(shared_python()), settle_seconds=60.0),
        host.state,
        idle.recent,
        worker=worker,
        lock_folder=Path(host.path("/run/lock")),
        environ={"PATH": "/usr/bin"},
    )
    idle.close()


def test_a_real_run_is_seen_by_a_daemon(runner: Runner) -> None:
    host: Any = runner.host
    tests = CardsUnderTest(host, SETTINGS, host.runs.trust)
    full = Observation(1.0, gpus=(gpu(), gpu(index=1, uuid="GPU-2")))
    results: list = []
    thread = threading.Thread(target=lambda: results.append(runner.run(gpu(), "nightly")))
    thread.start()
    try:
        eventually(
            lambda: [card.index for card in tests.untested(full, host.runs.read()).gpus] == [1], "the run to be proven"
        )
        (one,) = seen(host)
        assert (one["kind"], one["what"]) == ("stress", "GPU 0 NVIDIA GeForce RTX 5070 Ti")
    finally:
        runner.stop.set()
        thread.join()

    assert results[0].verdict in ("left", "passed", "failed")
    eventually(lambda: not host.runs.read(), "its end")
    assert tests.untested(full, host.runs.read()) is full


def test_a_run_that_is_kept_away_says_by_whom(runner: Runner) -> None:
    training = subprocess.Popen(
        ["flock", "-s", lock_of(runner.host).path, "sh", "-c", "echo on; cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    training.stdout.readline()
    result = runner.run(gpu(), "nightly")
    training.communicate(b"")

    assert result.verdict == "skipped"
    assert str(result.reason) == f"the GPU is locked by flock (pid {training.pid})"


def a_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def a_dead_link(path: Path) -> None:
    path.symlink_to("/no/such/file")


def a_socket(path: Path) -> None:
    os.chdir(path.parent)  # its name must be short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (os.mkfifo, "a FIFO"),
        (Path.mkdir, "a folder"),
        (a_link, "a link"),
        (a_dead_link, "a link"),
        (a_socket, "a socket"),
    ],
)
def test_a_fake_lock_file_neither_hangs_nor_misleads_a_run(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make: Callable[[Path], None], what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = lock_of(runner.host).path
    make(path)
    result = runner.run(gpu(), "nightly")

    assert result.verdict == "skipped"
    assert str(result.reason) == (
        f"the lock file {path} cannot be used, this is {what}, not a plain file: sudo rm -r {path}"
    )


@needs_root
def test_another_users_lock_file_serves_as_well(runner: Runner) -> None:
    path = lock_of(runner.host).path
    path.touch()
    os.chown(path, NOBODY, NOBODY)
    path.chmod(0o600)
    with GpuLock(0, path.parent).held() as ours:
        assert ours
