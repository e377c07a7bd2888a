"""Nothing but a proven test of ours, for its time, makes the daemon look away from a card that runs full."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import pwd
import signal
import socket
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from tests.gpu.conftest import built_library  # noqa: F401 - a fixture
from tests.sampling.test_pipeline import SteppingClock
from tests.stress.support import MIB, gpu
from tests.stress.test_stress_run import FAITHFUL, IdleGpu
from tests.support.accounts import shared_python
from tests.support.daemons import daemon, eventually
from tests.support.elsewhere import Elsewhere, open_to_all, seen
from tests.support.screens import print_status
from wslgpud.active_runs.note_reader import RunNotes
from wslgpud.active_runs.notes import PLACES, Note, Noted, name_of
from wslgpud.config import Config, Stress
from wslgpud.host import Host
from wslgpud.model import GpuSample, Level, Observation, Sample, Snapshot, SourceReport
from wslgpud.sampling.pipeline import SamplingPipeline
from wslgpud.serve.status import TickState, status
from wslgpud.sources.identity import Identity, Trust, identity
from wslgpud.stress import cards_under_test
from wslgpud.stress.cards_under_test import UNPROVEN_SECONDS, CardsUnderTest
from wslgpud.stress.lock import GpuLock
from wslgpud.stress.stress_run import Runner
from wslgpud.verdict import decide
from wslgpud.words import ENGLISH

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


def run(host: Host, *, noted: int | None = 0, worker: str = "its own", lock: str = "alone") -> Callable[[], None]:
    """Return the behaviour of a stress run of card 0, or of a program pretending to be one."""
    path = lock_of(host).path

    def act() -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if lock == "bytes":
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_SH if lock == "shared" else fcntl.LOCK_EX)
        if noted is None:
            return
        note = Note(host, "stress", "GPU 0", gpu=noted).__enter__()
        if worker == "its own":
            note.worker(_sleeper())
        elif worker == "dead":
            note.worker(pid := _sleeper())
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        elif worker == "somebody else's":
            note.worker(os.getppid())

    return act


def _sleeper() -> int:
    """Start a process that ends with its parent."""
    parent, pid = os.getpid(), os.fork()
    if not pid:
        while os.getppid() == parent:
            threading.Event().wait(0.05)
        os._exit(0)
    return pid


def test_a_stress_run_silences_its_card_only_as_long_as_allowed(host: Elsewhere) -> None:
    tests = CardsUnderTest(host, SETTINGS, RunNotes(host))
    with another(run(host)):
        quiet = []
        for _ in range(int(LIMIT_SECONDS) + 20):
            quiet.append(tests.look([0, 1]) == {0})
            host.clock.now += 1.0
        (held,) = tests.held

    assert quiet == [True] * (int(LIMIT_SECONDS) + 1) + [False] * 19
    assert held.user == pwd.getpwuid(os.getuid()).pw_name
    assert f"(pid {held.pid}, user {held.user}) for longer" in str(held.note)
    assert str(held.note).endswith("for longer than a test may take (80 s): VRAM warnings are active again")
    assert tests.look([0]) == set()
    assert tests.held == []


def test_memory_may_return_a_while_after_the_worker_has_ended(host: Elsewhere) -> None:
    tests = CardsUnderTest(host, SETTINGS, RunNotes(host))
    stop = host.path("/dev/shm") + "/stop"

    def act() -> None:
        run(host, worker="none")()
        note = Note(host, "stress", "GPU 0", gpu=0).__enter__()
        note.worker(pid := _sleeper())

        def end(*_: object) -> None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            Path(stop).touch()

        signal.signal(signal.SIGUSR1, end)

    with another(act) as pid:
        assert tests.look([0]) == {0}
        os.kill(pid, signal.SIGUSR1)
        eventually(lambda: Path(stop).exists(), "the worker's end")
        host.clock.now += 7.0
        assert tests.look([0]) == {0}
        host.clock.now += 0.25
        assert tests.look([0]) == set()


@pytest.mark.parametrize(
    "claim",
    [
        {"noted": None},
        {"worker": "none"},
        {"worker": "dead"},
        {"worker": "somebody else's"},
        {"noted": 1},
        {"lock": "shared"},
        {"lock": "bytes"},
    ],
    ids=[
        "a lock alone",
        "no worker",
        "a dead worker",
        "another's child",
        "another card",
        "a shared lock",
        "a lock of bytes",
    ],
)
def test_who_only_looks_like_a_run_is_not_left_alone(host: Elsewhere, claim: dict) -> None:
    tests = CardsUnderTest(host, SETTINGS, RunNotes(host))
    with another(run(host, **claim)):
        for _ in range(10):
            assert tests.look([0]) == set()
            host.clock.now += 1.0


@needs_root
def test_only_root_or_the_daemons_user_or_group_may_test_a_card(host: Elsewhere) -> None:
    def quiet(trust: Trust, groups: tuple[int, ...] = ()) -> bool:
        tests = CardsUnderTest(host, SETTINGS, RunNotes(host, trust))
        with another(run(host), NOBODY, groups):
            found = tests.look([0]) == {0}
            assert bool(seen(host, trust)) is found  # nor does another's run hide the monitor's hints
            host.clock.now += UNPROVEN_SECONDS
            assert tests.look([0]) == ({0} if found else set())
            assert found or "a user whom this daemon does not trust" in str(tests.held[0].note)
        return found

    assert not quiet(ROOT)
    assert not quiet(Trust(frozenset({0}), GROUP))
    assert not quiet(ROOT, (GROUP,))
    assert quiet(Trust(frozenset({0}), GROUP), (GROUP,))
    assert quiet(Trust(frozenset({NOBODY})))


@needs_root
def test_nobody_can_vouch_for_another_users_lock(host: Elsewhere) -> None:
    """Root's training under flock(1) without -s, and somebody's note that says it were a test."""
    lock_of(host).path.touch()
    training = subprocess.Popen(
        ["flock", lock_of(host).path, "sh", "-c", "echo on; cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    training.stdout.readline()

    def forge() -> None:
        child = int(Path(f"/proc/{training.pid}/task/{training.pid}/children").read_text().split()[0])
        with Note(host, "stress", "GPU 0", gpu=0) as note:
            note.worker(child)
            (own,) = Path(host.path(PLACES[0])).glob("*.json")
            start = Path(f"/proc/{training.pid}/stat").read_text().rpartition(")")[2].split()[19]
            text = own.read_text().replace(f'"pid":{os.getpid()}', f'"pid":{training.pid}')
            before = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
            text = text.replace(f'"start_ticks":{before}', f'"start_ticks":{start}')
        own.with_name(name_of("stress", training.pid)).write_text(text)

    forged = Path(host.path(PLACES[0]), name_of("stress", training.pid))
    try:
        with another(forge, NOBODY):
            assert CardsUnderTest(host, SETTINGS, RunNotes(host, ROOT)).look([0]) == set()
            os.chown(forged, 0, 0)  # the very same, were it root's own
            assert CardsUnderTest(host, SETTINGS, RunNotes(host, ROOT)).look([0]) == {0}
            forged.chmod(0o666)  # a file of root's that anybody can write, like the lock itself, ...
            assert CardsUnderTest(host, SETTINGS, RunNotes(host, ROOT)).look([0]) == set()
            forged.chmod(0o644)
            os.link(forged, forged.with_name("elsewhere"))  # ... or of which there is another link
            assert CardsUnderTest(host, SETTINGS, RunNotes(host, ROOT)).look([0]) == set()
    finally:
        training.communicate(b"")


def test_a_setuid_program_is_nobodys_for_certain() -> None:
    who = Identity(7, 7, 1, alive=True, uids=frozenset({1000, 0}), groups=frozenset(), name="su")

    assert not ROOT.covers(who)
    assert ROOT.covers(who._replace(uids=frozenset({0})))
    assert not ROOT.covers(who._replace(uids=frozenset({1000})))


class Ramp:
    """A monitor that sees a card fill to 98 % within a minute."""

    def __init__(self, host: Host, clock: SteppingClock, number: int, patch: pytest.MonkeyPatch) -> None:
        self.pipeline, self.clock, self.number = SamplingPipeline(Config(), host), clock, number
        patch.setattr(self.pipeline._sampler, "tick", lambda **_: self._snapshot())
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
            state, _ = self.pipeline.tick()
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
    found.pipeline.close()
    GpuLock(number).path.unlink(missing_ok=True)


def test_a_lock_held_by_another_program_silences_nothing(ramp: Ramp, caplog) -> None:
    path = GpuLock(ramp.number).path
    training = subprocess.Popen(
        ["flock", path, "sh", "-c", "echo on; cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    training.stdout.readline()
    try:
        with caplog.at_level(logging.WARNING):
            assert ramp.climb() == Level.EMERGENCY
        document = status(TickState(ramp.state, decide(ramp.state.forecasts, ())), ENGLISH)
    finally:
        training.communicate(b"")

    (said,) = (record.message for record in caplog.records if str(path) in record.message)
    assert f"is held by flock (pid {training.pid}, user " in said
    assert said.endswith(f"VRAM warnings continue; a training should hold it shared: flock -s {path}")
    (held,) = document["locks"]
    assert (held["gpu"], held["pid"], held["program"]) == (ramp.number, training.pid, "flock")
    console = Console(width=400, file=io.StringIO())
    print_status({**document, "seen_by": "own look", "processes": []}, console)
    assert said in console.file.getvalue()


def test_the_same_without_any_lock(ramp: Ramp) -> None:
    assert ramp.climb() == Level.EMERGENCY
    assert ramp.state.locks == []


def test_a_lock_without_a_note_is_reported_after_a_short_grace(host: Elsewhere) -> None:
    tests, complaints = CardsUnderTest(host, SETTINGS, RunNotes(host)), []
    with another(run(host, noted=None)):
        for seconds in (0.0, 2.75, 0.25, 1.0):
            host.clock.now += seconds
            tests.look([0])
            complaints.append(len(tests.held))

    assert complaints == [0, 0, 1, 1]


def test_taking_the_lock_over_and_over_is_logged_once_a_minute(host: Elsewhere, caplog) -> None:
    tests, logged = CardsUnderTest(host, SETTINGS, RunNotes(host)), []
    for _ in range(14):
        with another(run(host, noted=None)):
            for _ in range(5):
                tests.look([0])
                host.clock.now += 1.0
            assert len(tests.held) == 1
        logged.append(len(caplog.records))

    assert logged == [1] * 12 + [2] * 2


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
        tmp_path,
        idle.recent,
        worker=worker,
        lock_folder=Path(host.path("/run/lock")),
        environ={"PATH": "/usr/bin"},
    )
    idle.close()


def test_a_real_run_is_seen_by_a_daemon_that_can_write_nowhere(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the service's sandbox /run/lock can only be read; a run is another unit's."""
    notes = RunNotes(runner.host)
    tests = CardsUnderTest(runner.host, SETTINGS, notes)
    full = Observation(1.0, gpus=(gpu(), gpu(index=1, uuid="GPU-2")))
    results: list = []
    thread = threading.Thread(target=lambda: results.append(runner.run(gpu(), "nightly")))
    thread.start()
    try:
        eventually(
            lambda: [card.index for card in tests.untested(full, notes.read()).gpus] == [1], "the run to be proven"
        )
        with monkeypatch.context() as sandbox:
            sandbox.setattr(os, "access", lambda *_: False)
            assert [card.index for card in tests.untested(full, notes.read()).gpus] == [1]
        assert tests.held == []
        (one,) = seen(runner.host)
        assert (one["kind"], one["what"]) == ("stress", "GPU 0 NVIDIA GeForce RTX 5070 Ti")
    finally:
        runner.stop.set()
        thread.join()

    assert results[0].verdict in ("left", "passed", "failed")
    assert tests.untested(full, notes.read()) is full


def test_locks_are_read_rarely_while_no_card_is_being_tested(host: Elsewhere, monkeypatch) -> None:
    GpuLock(0, host.path("/run/lock")).path.touch()
    tests, full, read = CardsUnderTest(host, SETTINGS, RunNotes(host)), Observation(1.0, gpus=(gpu(),)), []
    monkeypatch.setattr(cards_under_test, "locks", lambda _: read.append(host.clock.now) or "")
    began = host.clock.now
    for _ in range(11):
        assert tests.untested(full, ()) is full
        host.clock.now += 1.0

    assert [now - began for now in read] == [0.0, 5.0, 10.0]

    read.clear()
    began = host.clock.now
    for kind in ("training", "stress", "training", "stress"):
        tests.untested(full, [Noted(identity(host, os.getpid()), {"kind": kind})])
        host.clock.now += 1.0

    assert [now - began for now in read] == [1.0, 3.0]


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
    assert CardsUnderTest(runner.host, SETTINGS, RunNotes(runner.host)).look([0]) == set()


@needs_root
def test_another_users_lock_file_serves_as_well(runner: Runner) -> None:
    path = lock_of(runner.host).path
    path.touch()
    os.chown(path, NOBODY, NOBODY)
    path.chmod(0o600)
    with GpuLock(0, path.parent).held() as ours:
        assert ours


@pytest.mark.slow
@pytest.mark.xdist_group("torch")  # whose tests take this card, too
def test_the_daemon_warns_of_a_locked_card_and_names_the_holder(tmp_path: Path, built_library: Path) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    library.write_bytes(built_library.read_bytes())
    facts = library.with_name(f"{library.name}.settings")
    total = 16303 * MIB
    facts.write_text(f"utilization 0\ntotal {total}\nused {int(0.99 * total)}\ntemperature 41\n")
    settings = {
        "WSLGPUD_SAMPLING__NVML_LIBRARY": str(library),
        "WSLGPUD_SAMPLING__INTERVAL_SECONDS": "0.5",
        "WSLGPUD_STRESS__SCHEDULE": "off",
    }
    lock = GpuLock(0)
    with lock.held() as ours, daemon(tmp_path, settings=settings) as running:
        if not ours:
            pytest.skip("another program holds the lock of this machine's GPU 0")

        def locked() -> dict:
            document = running.status()
            judged = {forecast["resource"] for forecast in document.get("forecasts", ())}
            return document if document.get("locks") and "gpu0" in judged else {}

        (held,) = eventually(locked, "the lock and the warning")["locks"]

    assert (held["gpu"], held["path"], held["pid"]) == (0, str(lock.path), os.getpid())
