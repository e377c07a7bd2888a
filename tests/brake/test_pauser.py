"""Real jobs are paused and resumed completely, and no other process is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.brake.real_jobs import FORKING, IDLE, US, below, cgroup, job_of, python, running, states
from tests.support.daemons import eventually
from wslgpud.brake import freezer, held_jobs, pauser
from wslgpud.brake.held_jobs import HeldJob
from wslgpud.brake.process_scan import rescan, scan
from wslgpud.brake.process_tree import ProcessTree
from wslgpud.host import Host
from wslgpud.security.exact_signals import ExactProcess, send, state_of

HOST = Host()
#: a job below a shell, and its sibling
SCRIPT = """
{python} -c 'import time; time.sleep(600)' &
{python} -c 'import time; time.sleep(600)' &
echo ready
wait
"""
SAVES = """
import os, signal, sys, time
def end(*_):
    os.write(1, b"saved\\n")  # print may be interrupted in print
    os._exit(0)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(600)
"""
DEAF = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(600)"


def programs_of(shell: int) -> list[ExactProcess]:
    """Return a shell's children, once they have called exec."""

    def started() -> list[ExactProcess]:
        found = {one.pid: one for one in scan(HOST).processes}
        _, *children = below(shell)
        return children if len(children) == 2 and not any(found[one.pid].is_shell for one in children) else []

    return eventually(started, "its children")


def hold(*pids: int, note: pauser.Register = lambda _: "") -> HeldJob:
    held, problem = pauser.pause(HOST, *job_of(*pids), {US}, note)
    assert problem == ""
    assert held is not None
    return held


def test_a_constantly_forking_job_is_fully_stopped_and_resumed() -> None:
    with running(*python(FORKING)) as forking:
        noted: list[HeldJob] = []
        held = hold(forking.pid, note=lambda grip: noted.append(grip) or "")  # type: ignore[func-returns-value]
        eventually(lambda: states(forking.pid) == {"T"}, "the stop of all processes")

        assert pauser.is_paused(held)
        assert noted[-1] == held
        assert {one.pid for one in below(forking.pid)} <= {one.pid for one in held.processes}

        held_jobs.resume(held)
        eventually(lambda: states(forking.pid) & {"S", "R"} and "T" not in states(forking.pid), "the resumption")


BECOMES = "echo ready; read now; exec {python} -c 'import time; time.sleep(600)'"


def test_a_shell_that_has_called_exec_meanwhile_is_stopped_too() -> None:
    code = f"import subprocess; subprocess.call(['/bin/sh', '-c', {BECOMES.format(python=sys.executable)!r}])"
    with running(*python(code), stdin=subprocess.PIPE) as job:
        shell = below(job.pid)[1]
        found, seen = job_of(job.pid)
        assert shell.pid not in {one.pid for one in found.members}
        job.stdin.write("\n")
        job.stdin.flush()
        eventually(lambda: "python" in Path(f"/proc/{shell.pid}/exe").readlink().name, "the exec")
        held, problem = pauser.pause(HOST, found, seen, {US}, lambda _: "")

        assert (problem, {one.pid for one in held.processes}) == ("", {job.pid, shell.pid})


def test_a_rescan_reads_only_new_processes() -> None:
    read: set[int] = set()

    class Counting(Host):
        def read(self, path: str) -> str:
            read.add(int(path.split("/")[2]))
            return super().read(path)

    before = scan(HOST)
    with running(*python(IDLE)) as job:
        now = rescan(Counting(), before, ())

        assert read == now.pids - before.pids
        assert job.pid in {one.pid for one in now.processes}


def test_the_parent_shell_of_a_job_and_its_sibling_keep_running() -> None:
    with running("/bin/sh", "-c", SCRIPT.format(python=sys.executable)) as shell:
        job, neighbour = programs_of(shell.pid)
        held = hold(job.pid)
        eventually(lambda: state_of(job) == "T", "the stop")

        assert [one.pid for one in held.processes] == [job.pid]
        assert state_of(neighbour) in "SR"
        assert state_of(below(shell.pid)[0]) in "SR"


def test_of_a_shell_script_only_its_children_are_stopped() -> None:
    with running("/bin/sh", "-c", SCRIPT.format(python=sys.executable)) as shell:
        own, programs = below(shell.pid)[0], programs_of(shell.pid)
        held = hold(shell.pid)
        eventually(lambda: {state_of(one) for one in programs} == {"T"}, "the stop of its children")

        assert own not in held.processes
        assert state_of(own) in "SR"


def test_resuming_a_job_does_not_wake_what_the_user_stopped() -> None:
    code = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {IDLE!r}])\nimport time; time.sleep(600)"
    with running(*python(code)) as job:
        child = below(job.pid)[1]
        os.kill(child.pid, signal.SIGSTOP)
        eventually(lambda: state_of(child) == "T", "the stop by the user")
        held = hold(job.pid)
        held_jobs.resume(held)
        eventually(lambda: state_of(below(job.pid)[0]) in "SR", "the resumption")

        assert state_of(child) == "T"


def test_a_reused_pid_is_never_signalled() -> None:
    with running(*python(IDLE)) as stranger:
        earlier = below(stranger.pid)[0]._replace(start_ticks=1)

        assert send(earlier, signal.SIGSTOP) == "its pid belongs to another process now"
        assert held_jobs.stop([earlier]) == {earlier: "its pid belongs to another process now"}
        assert held_jobs.resume(HeldJob((earlier,))) == 0
        assert state_of(earlier) == ""
        assert states(stranger.pid) <= {"S", "R"}


def test_no_process_is_stopped_before_it_is_registered() -> None:
    with running(*python(IDLE)) as job:
        held, problem = pauser.pause(HOST, *job_of(job.pid), {US}, lambda _: "the disk is full")

        assert (held, problem) == (None, "the disk is full")
        assert states(job.pid) <= {"S", "R"}


def test_a_job_that_cannot_be_registered_completely_is_resumed() -> None:
    with running(*python(FORKING)) as forking:
        calls: list[HeldJob] = []

        def only_once(held: HeldJob) -> str:
            calls.append(held)
            return "the disk is full" if len(calls) > 1 else ""

        held, problem = pauser.pause(HOST, *job_of(forking.pid), {US}, only_once)
        if problem:  # it may have had no child at that moment
            assert held is None
            eventually(lambda: "T" not in states(forking.pid), "the resumption")


def test_a_manual_sigcont_is_detected() -> None:
    with running(*python(IDLE)) as job:
        held = hold(job.pid)
        eventually(lambda: states(job.pid) == {"T"}, "the stop")
        os.kill(job.pid, signal.SIGCONT)
        eventually(lambda: pauser.is_paused(held) is False, "the resumption")
        job.kill()
        job.wait()

        assert pauser.is_paused(held) is None


def test_a_terminated_job_may_save_first() -> None:
    with running(*python(SAVES)) as job:
        held = hold(job.pid)
        pauser.terminate(held)

        assert job.stdout.readline() == "saved\n"
        job.wait()
        assert pauser.has_ended(held)


def test_a_job_that_ignores_sigterm_is_killed() -> None:
    with running(*python(DEAF)) as job:
        held = hold(job.pid)
        pauser.terminate(held)
        assert not pauser.has_ended(held)
        pauser.kill(HOST, held, {US})

        assert job.wait() == -signal.SIGKILL


def test_a_job_that_cannot_be_fully_stopped_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_jobs, "stop", lambda processes: dict.fromkeys(processes, "not permitted"))
    with running(*python(IDLE)) as job:
        assert pauser.pause(HOST, *job_of(job.pid), {US}, lambda _: "") == (None, "not permitted")
        assert states(job.pid) <= {"S", "R"}


@pytest.fixture
def written_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a cgroup's files, in which the jobs are said to be: it needs no root."""
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "cgroup.freeze").touch()
    monkeypatch.setattr(freezer, "mount_point", lambda: str(tmp_path))
    monkeypatch.setattr(pauser, "cgroup_of", lambda *_: "/job")
    return folder


@pytest.mark.parametrize(
    ("beside_at_first", "beside_later", "terminal", "orders"),
    [(False, False, False, "1"), (True, True, False, ""), (False, True, False, "0"), (False, False, True, "")],
    ids=["alone", "not alone", "joined", "in a terminal"],
)
def test_only_a_job_alone_in_its_cgroup_off_terminal_is_frozen(
    written_cgroup: Path, beside_at_first: bool, beside_later: bool, terminal: bool, orders: str
) -> None:
    with running(*python(IDLE)) as job:

        def members(beside: bool) -> None:
            (written_cgroup / "cgroup.procs").write_text(f"{job.pid}\n{os.getpid()}\n" if beside else f"{job.pid}\n")

        def note(_: HeldJob) -> str:
            members(beside_later)
            return ""

        members(beside_at_first)
        found, seen = job_of(job.pid)
        found = found._replace(members=tuple(one._replace(terminal=terminal) for one in found.members))
        held, problem = pauser.pause(HOST, found, seen, {US}, note)

        assert problem == ""
        assert held is not None
        assert held.cgroup == (str(written_cgroup) if orders == "1" else "")
        assert (written_cgroup / "cgroup.freeze").read_text() == orders
        eventually(lambda: states(job.pid) <= ({"S", "R"} if orders == "1" else {"T"}), "its state")


def test_a_cgroup_is_not_frozen_before_its_job_is_registered(written_cgroup: Path) -> None:
    with running(*python(IDLE)) as job:
        (written_cgroup / "cgroup.procs").write_text(f"{job.pid}\n")

        assert pauser.pause(HOST, *job_of(job.pid), {US}, lambda _: "the disk is full") == (None, "the disk is full")
        assert (written_cgroup / "cgroup.freeze").read_text() == ""


def test_what_a_job_has_left_in_its_cgroup_is_killed_with_it(written_cgroup: Path) -> None:
    with running(*python(DEAF)) as job, running(*python(DEAF)) as left:
        (written_cgroup / "cgroup.procs").write_text(f"{job.pid}\n{left.pid}\n")
        pauser.kill(HOST, HeldJob((below(job.pid)[0],), str(written_cgroup)), {US})
        for one in (job, left):
            eventually(lambda one=one: one.poll() == -signal.SIGKILL, "its end")


def enter(folder: Path, pid: int) -> None:
    (folder / "cgroup.procs").write_text(str(pid))


def test_a_job_alone_in_a_cgroup_is_frozen_with_all_it_starts() -> None:
    with cgroup("own") as folder, running(*python(FORKING)) as job:
        enter(folder, job.pid)
        eventually(lambda: {*map(int, (folder / "cgroup.procs").read_text().split())} >= {job.pid}, "the move")
        # Children forked before the move are not in the cgroup; wait until they have exited.
        eventually(
            lambda: {one.pid for one in below(job.pid)} <= (freezer.pids_in(str(folder)) or set()),
            "the move of all processes",
        )
        held, problem = pauser.pause(HOST, *job_of(job.pid), {US}, lambda _: "")
        assert problem == ""
        assert held is not None
        if held.cgroup:  # a zombie child in the cgroup makes it fall back to SIGSTOP
            eventually(lambda: freezer.is_frozen(str(folder)) is True, "the freeze")
        assert pauser.is_paused(held) or not held.cgroup
        held_jobs.resume(held)
        eventually(lambda: freezer.is_frozen(str(folder)) is False, "the thaw")


def test_a_cgroup_with_a_foreign_process_is_not_frozen() -> None:
    with cgroup("shared") as folder, running(*python(IDLE)) as job, running(*python(IDLE)) as neighbour:
        enter(folder, job.pid)
        enter(folder, neighbour.pid)
        held = hold(job.pid)

        assert held.cgroup == ""
        eventually(lambda: states(job.pid) == {"T"}, "the stop")
        assert states(neighbour.pid) <= {"S", "R"}


def test_a_job_frozen_in_its_cgroup_can_be_killed_there() -> None:
    with cgroup("quiet") as folder, running(*python(DEAF)) as job:
        enter(folder, job.pid)
        held = hold(job.pid)
        assert held.cgroup == str(folder)
        eventually(lambda: pauser.is_paused(held) is True, "the freeze")
        pauser.terminate(held)
        eventually(lambda: pauser.is_paused(held) is False, "the thaw")
        pauser.kill(HOST, held, {US})
        job.wait()
        eventually(lambda: pauser.has_ended(held), "the job's exit")


def test_a_scan_finds_this_process_with_its_user_and_memory() -> None:
    own = ProcessTree(scan(HOST, cgroups=True).processes, {}).by_pid[os.getpid()]

    assert (own.uid, own.parent) == (US, os.getppid())
    assert own.memory_bytes > 1 << 20
    assert own.program.startswith("python")


@pytest.mark.parametrize("path", ["", "/", "/..", "/a/../b", "a", "/a//b", "/a/./b"])
def test_a_malformed_cgroup_path_has_no_folder(path: str) -> None:
    assert freezer.folder_of(path) == ""


def test_the_identity_of_a_scanned_process_can_be_signalled() -> None:
    (one, *_) = pauser.exact_processes([ProcessTree(scan(HOST).processes, {}).by_pid[os.getpid()]])

    assert isinstance(one, ExactProcess)
    assert state_of(one) == "R"


#: starts a job in a pseudo-terminal, as a terminal emulator does
IN_TERMINAL = f"""
import os, pty, sys
pid, line = pty.fork()
if pid == 0:
    os.execv(sys.executable, [sys.executable, "-c", {IDLE!r}])
while b"ready" not in os.read(line, 100): pass
print("ready", flush=True)
import time; time.sleep(600)
"""


def test_a_job_with_a_terminal_is_stopped_rather_than_frozen() -> None:
    with cgroup("terminal") as folder, running(*python(IN_TERMINAL)) as emulator:
        (_, job) = below(emulator.pid)
        enter(folder, job.pid)
        held = hold(job.pid)
        assert held.cgroup == ""
        eventually(lambda: state_of(job) == "T", "the stop")
        held_jobs.resume(held)


def test_a_cgroup_joined_by_a_foreign_process_is_thawed(monkeypatch: pytest.MonkeyPatch) -> None:
    with cgroup("race") as folder, running(*python(IDLE)) as job, running(*python(IDLE)) as neighbour:
        enter(folder, job.pid)
        freeze = freezer.set_frozen

        def late(path: str, *, frozen: bool) -> None:
            if frozen:
                enter(folder, neighbour.pid)
            freeze(path, frozen=frozen)

        monkeypatch.setattr(freezer, "set_frozen", late)
        held = hold(job.pid)
        assert held.cgroup == ""
        eventually(lambda: states(job.pid) == {"T"}, "the stop")
        assert freezer.is_frozen(str(folder)) is False
        assert states(neighbour.pid) <= {"S", "R"}


MAPS = """
import mmap, os, tempfile, sys
size = 64 << 20
with tempfile.NamedTemporaryFile(dir=sys.argv[1]) as file:
    file.write(b"x" * size); file.flush()
    mapped = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
    sum(mapped[n] for n in range(0, size, 4096))
    print("ready", flush=True)
    import time; time.sleep(600)
"""


def test_file_pages_do_not_count_and_tmpfs_pages_are_shared(tmp_path: Path) -> None:
    with running(*python(MAPS), str(tmp_path)) as reader, running(*python(MAPS), "/dev/shm") as sharer:
        found = {one.pid: one for one in scan(HOST).processes}
        on_disk, in_ram = found[reader.pid], found[sharer.pid]

        assert in_ram.shared_bytes >= 64 << 20
        assert on_disk.memory_bytes < 40 << 20
        assert in_ram.with_shared().memory_bytes == in_ram.memory_bytes + in_ram.shared_bytes
