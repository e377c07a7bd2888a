"""Where everyone may write, no one can redirect us, keep us busy, or speak for another user."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.abuse.test_silence import NOBODY, ROOT, Idle, another, needs_root
from tests.sampling.test_pipeline import SteppingClock
from tests.stress.support import gpu
from tests.stress.test_stress_run import FAITHFUL, IdleGpu
from tests.support.accounts import shared_python
from tests.support.elsewhere import Elsewhere, open_to_all, seen
from wslgpud.active_runs.note_reader import MAX_NOTES, MAX_NOTES_A_USER, RunNotes
from wslgpud.active_runs.notes import MAX_ENTRIES, PLACES, RUNS, Claim, Note, name_of
from wslgpud.advise.guard import past_runs
from wslgpud.advise.guard.logs import LogError, own_log
from wslgpud.alerts.control import FILE as CONTROL
from wslgpud.alerts.control import ControlFile
from wslgpud.brake.held_jobs import FILE as HELD
from wslgpud.brake.held_jobs import HeldJobsFile
from wslgpud.config import Stress
from wslgpud.host import Host
from wslgpud.model import ProcessSample, StressResult
from wslgpud.sampling.noted_runs import expected
from wslgpud.security import safe_files
from wslgpud.stress.conditions import note_hung, still_hung
from wslgpud.stress.schedule import Nightly, inbox, leave
from wslgpud.stress.stress_run import Runner
from wslgpud.words import MessageLike

GIB = 1 << 30
#: more than are listed, however many more; 100,000 take as long to read
FLOOD = 2_400


@pytest.fixture
def host(tmp_path: Path) -> Elsewhere:
    return Elsewhere(open_to_all(tmp_path) / "shared", SteppingClock())


def at(host: Host, name: str, place: str = PLACES[0]) -> Path:
    return Path(host.path(place), name)


def a_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


class Calls:
    """How often the kernel was asked for something with a name."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.opened = self.asked = self.listed = 0
        for counter, names in {
            "opened": ["open"],
            "asked": ["stat", "lstat"],
            "listed": ["scandir", "listdir"],
        }.items():
            for name in names:
                self._count(patch, name, counter)

    def _count(self, patch: pytest.MonkeyPatch, name: str, counter: str) -> None:
        real = getattr(os, name)

        def counted(*given: object, **named: object) -> object:
            setattr(self, counter, getattr(self, counter) + 1)
            return real(*given, **named)

        patch.setattr(os, name, counted)

    def of(self, act: Callable[[], object]) -> tuple[int, int, int]:
        """Return how many files were opened, asked for, and folders listed by it."""
        self.opened = self.asked = self.listed = 0
        act()
        return self.opened, self.asked, self.listed


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo, a_link], ids=["empty files", "FIFOs", "links"])
def test_a_flood_of_files_costs_nothing_and_hides_no_note(
    host: Elsewhere, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, make: Callable
) -> None:
    notes = RunNotes(host)
    for place in PLACES:
        for number in range(FLOOD // 2):
            for name in (f"wslgpud-guard-{number}.json", name_of("guard", 10**8 + number)):
                make(at(host, name, place))
    calls = Calls(monkeypatch)
    processes = len(list(Path("/proc").iterdir()))
    first = calls.of(notes.read)
    host.clock.now += 0.5
    while_it_grows = calls.of(notes.read)
    host.clock.now += 3600.0
    monkeypatch.setattr(safe_files.Folder, "changed_ns", lambda _: 1)  # long ago
    notes.read()
    host.clock.now += 3600.0
    settled = calls.of(notes.read)

    # Two folders; of each live process at most the names of its three notes, asked for and not opened.
    assert first[0] <= 2
    assert first[1] <= len(RUNS) * len(PLACES) * (processes + 50)
    assert first[2] <= 2 + len(PLACES)
    assert while_it_grows == (2, 0, 0)
    assert settled == (2, 0, 0)
    monkeypatch.undo()

    with Note(host, "guard", "make"):
        host.clock.now += 60.0
        assert [note.who.pid for note in notes.read()] == [os.getpid()]
        assert notes.of("guard", os.getpid()) is not None
    assert notes.read() == []
    assert [record.message.partition(" is full")[0] for record in caplog.records] == [
        host.path(place) for place in PLACES
    ]


def test_listing_ends_after_so_many_entries(tmp_path: Path) -> None:
    for number in range(2 * MAX_ENTRIES):
        (tmp_path / str(number)).touch()
    with safe_files.Folder(tmp_path) as folder:
        assert len(folder.names(MAX_ENTRIES)) == MAX_ENTRIES


@needs_root
def test_one_users_notes_displace_nobody_elses(host: Elsewhere) -> None:
    for pid in range(1, 900):
        made = at(host, name_of("guard", pid))
        made.touch()
        os.chown(made, NOBODY, NOBODY)
    notes = RunNotes(host, ROOT)
    with Note(host, "guard", "make"):
        assert [note.who.pid for note in notes.read()] == [os.getpid()]
        opened: list[str] = []
        real = safe_files.Folder.opened
        safe_files.Folder.opened = lambda self, name: (opened.append(name), real(self, name))[1]
        try:
            RunNotes(host, ROOT).read()
        finally:
            safe_files.Folder.opened = real

    assert opened[0] == name_of("guard", os.getpid())
    assert len(opened) <= 1 + MAX_NOTES_A_USER < MAX_NOTES


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


RUN = StressResult(1.7e9, "GPU-1", 0, "a card", "passed")


class Kept:
    """A history that keeps nothing."""

    @property
    def reader(self) -> Kept:
        return self

    def record_stress(self, _: StressResult) -> int:
        return 1

    def stress_runs(self, *, brief: bool) -> list[tuple[int, StressResult]]:
        return []

    def stress_run(self, _: int) -> None:
        return None


def test_a_stress_run_removes_and_writes_nothing_through_a_link(tmp_path: Path, state: Path, victim: Path) -> None:
    """As root in the service's state folder: behind 'running', whatever ended in .json was swept away."""
    for name in ("running", "stress-inbox", "guard"):
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
    with pytest.raises(OSError, match="directory"):
        leave(state, RUN)
    assert kept(victim)


def test_runs_and_logs_are_not_taken_from_where_a_link_leads(state: Path, victim: Path) -> None:
    for name in ("stress-inbox", "guard"):
        (state / name).symlink_to(victim)
    nightly = Nightly(Stress(), Host(), state, Kept())
    nightly._take_inbox()
    nightly.close()
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
    HeldJobsFile(state).write(1, [])
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
    inbox(state).mkdir()
    make(inbox(state) / "1-GPU-1.json")
    complaints: list[MessageLike] = []
    nightly = Nightly(Stress(), Host(), state, Kept())

    assert outcome(lambda: still_hung(state, Host())) is False
    assert outcome(HeldJobsFile(state).read) == (0, {})
    assert outcome(lambda: past_runs.load(state)) == past_runs.PastRuns()
    assert outcome(nightly._take_inbox) is None
    assert outcome(lambda: ControlFile(state, complaints.append)).now.silences == ()
    nightly.close()
    (said,) = complaints
    assert "so nothing is silenced" in str(said)


def process(pid: int, uid: int | None) -> ProcessSample:
    return ProcessSample(pid, 1, "python", GIB, 0, uid, frozenset(), "python train.py", "")


@needs_root
def test_nobody_speaks_for_another_users_processes(host: Elsewhere) -> None:
    """A guard's statement overrides the daemon's lessons, but only for its user's processes."""
    running = (process(10, NOBODY), process(11, 1000), process(12, None))

    def announce() -> None:
        Note(host, "guard", "make", who="make").__enter__().tell(
            "runs", claim=Claim({"ram": 9 * GIB, "nonsense": 1 << 60}, {"ram": GIB}, [10, 11, 12, 13])
        )

    with another(announce, NOBODY) as pid:
        (row,) = expected(RunNotes(host, ROOT).read(), running)
    assert (row.resource, row.who, row.pids) == ("ram", f"make (guard {pid})", (10,))

    with another(announce) as pid:  # sudo, which runs others' programs for them
        (row,) = expected(RunNotes(host, ROOT).read(), running)
    assert row.pids == (10, 11, 12)


def test_a_note_of_another_process_time_or_name_does_not_count(host: Elsewhere) -> None:
    with Note(host, "guard", "make"):
        file = at(host, name_of("guard", os.getpid()))
        text = file.read_text()
        assert seen(host)
        for name, wrong in (
            (name_of("guard", os.getppid()), text),
            (name_of("stress", os.getpid()), text),
            (file.name, text.replace('"start_ticks":', '"start_ticks":9')),
            (file.name, text.replace(f'"pid":{os.getpid()}', f'"pid":{os.getppid()}')),
        ):
            file.unlink(missing_ok=True)
            at(host, name).write_text(wrong)
            assert seen(host) == []
            at(host, name).unlink()


def test_a_place_that_somebody_has_taken_is_no_place(host: Elsewhere) -> None:
    """Somebody may foretell a note's name: then it lies in the other folder."""
    at(host, name_of("guard", os.getpid())).mkdir()
    with Note(host, "guard", "make"):
        assert [one["pid"] for one in seen(host)] == [os.getpid()]
        assert at(host, name_of("guard", os.getpid()), PLACES[1]).is_file()


def test_only_our_own_dead_notes_are_swept_away(host: Elsewhere) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    names = [name_of("guard", child.pid), f"guard-{child.pid}.json", "other.json", name_of("guard", 1) + "x"]
    for name in names:
        at(host, name).write_text("{}")
    foreign = at(host, name_of("stress", child.pid))
    foreign.write_text("{}")
    if os.geteuid() == 0:
        os.chown(foreign, NOBODY, NOBODY)
    with Note(host, "guard", "make"):
        left = {file.name for file in Path(host.path(PLACES[0])).iterdir()}

    assert names[0] not in left
    assert set(names[1:]) <= left
    assert (foreign.name in left) is (os.geteuid() == 0)
