"""Where everyone may write, no one can redirect us, keep us busy, or speak for another user."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.abuse.test_silence import NOBODY, ROOT, Idle, another, needs_root
from tests.sampling.test_assessor import SteppingClock
from tests.stress.support import gpu
from tests.stress.test_stress_run import FAITHFUL, IdleGpu
from tests.support.accounts import shared_python
from tests.support.elsewhere import Elsewhere, open_to_all
from wslgpud import active_runs
from wslgpud.active_runs import MAX_RUNS, MAX_RUNS_A_USER, TooManyRuns
from wslgpud.advise.guard import past_runs
from wslgpud.advise.guard.relay import LogError, own_log
from wslgpud.alerts.manager import FILE as CONTROL
from wslgpud.alerts.manager import ControlFile
from wslgpud.brake import FILE as HELD
from wslgpud.brake.watchdog import HeldJobsFile
from wslgpud.config import Stress
from wslgpud.host import Host
from wslgpud.model import ProcessSample
from wslgpud.sampling.noted_runs import expected
from wslgpud.security import safe_files
from wslgpud.sources.procfs import Peer, identity
from wslgpud.stress.conditions import note_hung, still_hung
from wslgpud.stress.stress_run import Runner
from wslgpud.training.companion import Announcement
from wslgpud.words import MessageLike

GIB = 1 << 30


@pytest.fixture
def host(tmp_path: Path) -> Elsewhere:
    return Elsewhere(open_to_all(tmp_path) / "shared", SteppingClock())


def a_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def test_listing_ends_after_so_many_entries(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).touch()
    with safe_files.Folder(tmp_path) as folder:
        assert len(folder.names(10)) == 10


RUN_OF_GUARD = {"kind": "guard", "what": "make", "who": "make", "phase": "", "began_mono": 1.0}


def peers_of(host: Elsewhere, uid: int, count: int, patch: pytest.MonkeyPatch) -> list[Peer]:
    """Return so many connections of a user's, from processes that live."""
    who = identity(host, os.getpid())
    patch.setattr(active_runs, "identity", lambda _, pid: who._replace(pid=pid, uids=frozenset({pid // 1000})))
    return [Peer(1000 * uid + number, uid) for number in range(count)]


def test_nobody_announces_without_end(host: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    host.runs.trust = ROOT
    for uid in (1001, 1002):
        for peer in peers_of(host, uid, MAX_RUNS_A_USER, monkeypatch):
            host.runs.announce(peer, RUN_OF_GUARD)
        with pytest.raises(TooManyRuns):
            host.runs.announce(Peer(1000 * uid + 999, uid), RUN_OF_GUARD)
    with pytest.raises(TooManyRuns):
        host.runs.announce(Peer(1003000, 1003), RUN_OF_GUARD)
    assert len(host.runs.read()) == MAX_RUNS


def test_no_strangers_runs_displace_those_of_trusted_users(host: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    host.runs.trust = ROOT
    strangers = [
        *peers_of(host, 1001, MAX_RUNS_A_USER, monkeypatch),
        *peers_of(host, 1002, MAX_RUNS_A_USER, monkeypatch),
    ]
    for peer in (*strangers, Peer(7, 0)):
        host.runs.announce(peer, RUN_OF_GUARD)
    strangers[0].gone = True
    host.runs.announce(Peer(1003000, 1003), RUN_OF_GUARD)

    assert {run.who.pid for run in host.runs.read()} >= {7, 1003000}


def test_a_process_of_several_users_speaks_for_none(host: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    (peer,) = peers_of(host, 1001, 1, monkeypatch)
    with pytest.raises(ValueError, match="one user"):
        host.runs.announce(Peer(peer.pid, 1002), RUN_OF_GUARD)


@needs_root
def test_the_pid_in_a_document_is_not_believed(host: Elsewhere) -> None:
    def lie() -> None:
        document = {**RUN_OF_GUARD, "pid": os.getppid(), "start_ticks": 1}
        LINES.append(Announcement([str(host.state)]))
        LINES[-1].tell(document)

    with another(lie, NOBODY) as pid:
        assert [(run.who.pid, run.document["pid"]) for run in host.runs.read()] == [(pid, pid)]


#: open connections of forked processes
LINES: list[Announcement] = []


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Return somebody's folder with files that are none of ours."""
    folder = tmp_path / "victim"
    folder.mkdir()
    for name in ("a.json", "stress-1.json", "wslgpud-running-stress-1.json", "old.log"):
        (folder / name).write_text("{}")
    return folder


def kept(victim: Path) -> bool:
    return sorted((f.name, f.read_text()) for f in victim.iterdir()) == [
        ("a.json", "{}"),
        ("old.log", "{}"),
        ("stress-1.json", "{}"),
        ("wslgpud-running-stress-1.json", "{}"),
    ]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Return the state folder of a service whose account has been taken over."""
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


def test_a_stress_run_removes_and_writes_nothing_through_a_link(tmp_path: Path, state: Path, victim: Path) -> None:
    """As root in the service's state folder: behind 'running', whatever ended in .json was swept away."""
    for name in ("running", "guard"):
        (state / name).symlink_to(victim)
    worker = tmp_path / "worker.py"
    worker.write_text(FAITHFUL)
    idle, host = IdleGpu(), Idle(tmp_path / "shared")
    runner = Runner(
        host,
        Stress(python=str(shared_python()), settle_seconds=60.0),
        state,
        idle.recent,
        worker=worker,
        lock_folder=Path(host.path("/run/lock")),
        environ={"PATH": "/usr/bin"},
    )
    result = runner.run(gpu(), "nightly")
    idle.close()

    assert result.verdict == "passed", result.reason
    assert kept(victim)


def test_logs_are_not_kept_where_a_link_leads(state: Path, victim: Path) -> None:
    (state / "guard").symlink_to(victim)
    for number in range(30):
        (victim / f"{number}.log").touch()
    with pytest.raises(LogError, match=r"cannot keep a log in .*guard: Not a directory; name one with --log"):
        own_log(state, ["make"])

    assert len(list(victim.iterdir())) == 34


def test_a_link_in_place_of_a_file_is_replaced_not_followed(state: Path, victim: Path) -> None:
    for name in ("stress-hung.json", CONTROL, HELD, past_runs.NAME):
        (state / name).symlink_to(victim / "a.json")
    note_hung(state, Host(), 7)
    ControlFile(state).see(1)
    HeldJobsFile(state).write(1, {})
    past_runs.save(state, past_runs.PastRuns())

    assert kept(victim)
    assert not any(file.is_symlink() for file in state.iterdir())


def test_a_folder_swapped_for_a_link_leads_nowhere(tmp_path: Path, victim: Path) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "a.json").write_text("ours")
    with safe_files.Folder(ours) as folder:
        ours.rename(tmp_path / "moved")
        ours.symlink_to(victim)
        folder.put("b.json", "text")
        folder.remove("a.json")

    assert kept(victim)
    assert [file.name for file in (tmp_path / "moved").iterdir()] == ["b.json"]
    with pytest.raises(OSError, match="directory"):
        safe_files.put(ours / "b.json", "text")
    assert kept(victim)


@pytest.fixture
def outcome() -> Callable[[Callable[[], object]], object]:
    """Return a call's result or exception; fail if it blocks instead, as on a FIFO."""

    def of(act: Callable[[], object]) -> object:
        done: list[object] = []

        def work() -> None:
            try:
                done.append(act())
            except (OSError, ValueError) as error:
                done.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(60)
        assert done, "it waits for ever"
        return done[0]

    return of


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_huge_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(20 << 30)


@pytest.mark.parametrize("make", [a_fifo, a_huge_file, a_link, Path.mkdir])
def test_no_state_folder_file_hangs_us_or_fills_our_memory(state: Path, outcome, make: Callable) -> None:
    for name in ("stress-hung.json", CONTROL, HELD, past_runs.NAME):
        make(state / name)
    complaints: list[MessageLike] = []

    assert outcome(lambda: still_hung(state, Host())) is False
    assert outcome(HeldJobsFile(state).read) == (0, {})
    assert outcome(lambda: past_runs.load(state)) == past_runs.PastRuns()
    assert outcome(lambda: ControlFile(state, complaints.append)).now.silences == ()
    (said,) = complaints
    assert "so nothing is silenced" in str(said)


def process(pid: int, uid: int | None) -> ProcessSample:
    return ProcessSample(pid, 1, "python", GIB, 0, uid, frozenset(), "python train.py", "")


@needs_root
def test_nobody_speaks_for_another_users_processes(host: Elsewhere) -> None:
    """A guard's statement overrides the daemon's lessons, but only for its user's processes."""
    running = (process(10, NOBODY), process(11, 1000), process(12, None))

    def announce() -> None:
        peaks = {"ram": 9 * GIB, "nonsense": 1 << 60}
        note = host.note("guard", "make", who="make")
        note.tell("runs", facts={"peaks": peaks, "used": {"ram": GIB}, "pids": [10, 11, 12, 13]})
        LINES.append(note._line)

    with another(announce, NOBODY) as pid:
        (row,) = expected(host.runs.read(), running)
    assert (row.resource, row.who, row.pids) == ("ram", f"make (guard {pid})", (10,))

    with another(announce) as pid:  # sudo, which runs others' programs for them
        (row,) = expected(host.runs.read(), running)
    assert row.pids == (10, 11, 12)
