"""Real jobs are held whole, go on whole, and nobody beside them is touched."""

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
#: a job below a shell, and a neighbour
SCRIPT = """
{python} -c 'import time; time.sleep(600)' &
{python} -c 'import time; time.sleep(600)' &
echo ready
wait
"""
SAVES = """
import os, signal, sys, time
def end(*_):
    print("saved", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(600)
"""
DEAF = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(600)"


def programs_of(shell: int) -> list[ExactProcess]:
    """Return what a shell has started, once that is no copy of the shell any more."""

    def started() -> list[ExactProcess]:
        found = {one.pid: one for one in scan(HOST).processes}
        _, *children = below(shell)
        return children if len(children) == 2 and not any(found[one.pid].is_shell for one in children) else []

    return eventually(started, "its programs")


def hold(*pids: int, note: pauser.Register = lambda _: "") -> HeldJob:
    held, problem = pauser.pause(HOST, *job_of(*pids), {US}, note)
    assert problem == ""
    assert held is not None
    return held


def test_a_job_that_forks_all_the_time_is_held_to_the_last_child_and_goes_on() -> None:
    with running(*python(FORKING)) as forking:
        noted: list[HeldJob] = []
        held = hold(forking.pid, note=lambda grip: noted.append(grip) or "")  # type: ignore[func-returns-value]
        eventually(lambda: states(forking.pid) == {"T"}, "the stop of all")

        assert pauser.is_paused(held)
        assert noted[-1] == held
        assert {one.pid for one in below(forking.pid)} <= {one.pid for one in held.processes}

        held_jobs.resume(held)
        eventually(lambda: states(forking.pid) & {"S", "R"} and "T" not in states(forking.pid), "going on")


BECOMES = "echo ready; read now; exec {python} -c 'import time; time.sleep(600)'"


def test_a_shell_whose_place_a_program_has_taken_meanwhile_is_held_as_well() -> None:
    code = f"import subprocess; subprocess.call(['/bin/sh', '-c', {BECOMES.format(python=sys.executable)!r}])"
    with running(*python(code), stdin=subprocess.PIPE) as job:
        shell = below(job.pid)[1]
        found, seen = job_of(job.pid)
        assert shell.pid not in {one.pid for one in found.members}
        job.stdin.write("\n")
        job.stdin.flush()
        eventually(lambda: "python" in Path(f"/proc/{shell.pid}/exe").readlink().name, "the other program")
        held, problem = pauser.pause(HOST, found, seen, {US}, lambda _: "")

        assert (problem, {one.pid for one in held.processes}) == ("", {job.pid, shell.pid})


def test_a_second_look_reads_only_who_has_come_since() -> None:
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


def test_the_shell_that_a_job_was_started_from_is_left_alone_and_so_is_the_neighbour() -> None:
    with running("/bin/sh", "-c", SCRIPT.format(python=sys.executable)) as shell:
        job, neighbour = programs_of(shell.pid)
        held = hold(job.pid)
        eventually(lambda: state_of(job) == "T", "the stop")

        assert [one.pid for one in held.processes] == [job.pid]
        assert state_of(neighbour) in "SR"
        assert state_of(below(shell.pid)[0]) in "SR"


def test_of_a_script_that_is_paused_itself_only_its_programs_are_stopped() -> None:
    with running("/bin/sh", "-c", SCRIPT.format(python=sys.executable)) as shell:
        own, programs = below(shell.pid)[0], programs_of(shell.pid)
        held = hold(shell.pid)
        eventually(lambda: {state_of(one) for one in programs} == {"T"}, "the stop of its programs")

        assert own not in held.processes
        assert state_of(own) in "SR"


def test_who_was_stopped_by_somebody_else_stays_so_when_the_job_goes_on() -> None:
    code = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {IDLE!r}])\nimport time; time.sleep(600)"
    with running(*python(code)) as job:
        child = below(job.pid)[1]
        os.kill(child.pid, signal.SIGSTOP)
        eventually(lambda: state_of(child) == "T", "the stop by somebody else")
        held = hold(job.pid)
        held_jobs.resume(held)
        eventually(lambda: state_of(below(job.pid)[0]) in "SR", "going on")

        assert state_of(child) == "T"


def test_a_number_that_another_process_has_by_now_reaches_nobody() -> None:
    with running(*python(IDLE)) as stranger:
        earlier = below(stranger.pid)[0]._replace(start_ticks=1)

        assert send(earlier, signal.SIGSTOP) == "its pid belongs to another process now"
        assert held_jobs.stop([earlier]) == {earlier: "its pid belongs to another process now"}
        assert held_jobs.resume(HeldJob((earlier,))) == 0
        assert state_of(earlier) == ""
        assert states(stranger.pid) <= {"S", "R"}


def test_nobody_is_stopped_who_cannot_be_noted() -> None:
    with running(*python(IDLE)) as job:
        held, problem = pauser.pause(HOST, *job_of(job.pid), {US}, lambda _: "the disk is full")

        assert (held, problem) == (None, "the disk is full")
        assert states(job.pid) <= {"S", "R"}


def test_a_job_that_cannot_be_noted_to_its_end_goes_on() -> None:
    with running(*python(FORKING)) as forking:
        calls: list[HeldJob] = []

        def only_once(held: HeldJob) -> str:
            calls.append(held)
            return "the disk is full" if len(calls) > 1 else ""

        held, problem = pauser.pause(HOST, *job_of(forking.pid), {US}, only_once)
        if problem:  # else it had no child at that moment
            assert held is None
            eventually(lambda: "T" not in states(forking.pid), "going on")


def test_somebody_who_lets_it_go_on_by_hand_is_noticed() -> None:
    with running(*python(IDLE)) as job:
        held = hold(job.pid)
        eventually(lambda: states(job.pid) == {"T"}, "the stop")
        os.kill(job.pid, signal.SIGCONT)
        eventually(lambda: pauser.is_paused(held) is False, "going on")
        job.kill()
        job.wait()

        assert pauser.is_paused(held) is None


def test_a_job_that_is_to_end_may_save_first() -> None:
    with running(*python(SAVES)) as job:
        held = hold(job.pid)
        pauser.terminate(held)

        assert job.stdout.readline() == "saved\n"
        job.wait()
        assert pauser.has_ended(held)


def test_one_that_does_not_listen_is_killed() -> None:
    with running(*python(DEAF)) as job:
        held = hold(job.pid)
        pauser.terminate(held)
        assert not pauser.has_ended(held)
        pauser.kill(HOST, held, {US})

        assert job.wait() == -signal.SIGKILL


def enter(folder: Path, pid: int) -> None:
    (folder / "cgroup.procs").write_text(str(pid))


def test_a_job_in_a_cgroup_of_its_own_is_frozen_with_all_that_it_starts() -> None:
    with cgroup("own") as folder, running(*python(FORKING)) as job:
        enter(folder, job.pid)
        eventually(lambda: {*map(int, (folder / "cgroup.procs").read_text().split())} >= {job.pid}, "the move")
        # Its children of before the move have ended when the group has all of it.
        eventually(lambda: {one.pid for one in below(job.pid)} <= (freezer.pids_in(str(folder)) or set()), "all in it")
        held, problem = pauser.pause(HOST, *job_of(job.pid), {US}, lambda _: "")
        assert problem == ""
        assert held is not None
        if held.cgroup:  # else a child that had ended was in the group: then it is stopped process by process
            eventually(lambda: freezer.is_frozen(str(folder)) is True, "the freeze")
        assert pauser.is_paused(held) or not held.cgroup
        held_jobs.resume(held)
        eventually(lambda: freezer.is_frozen(str(folder)) is False, "the thaw")


def test_a_cgroup_with_somebody_else_in_it_is_not_frozen() -> None:
    with cgroup("shared") as folder, running(*python(IDLE)) as job, running(*python(IDLE)) as neighbour:
        enter(folder, job.pid)
        enter(folder, neighbour.pid)
        held = hold(job.pid)

        assert held.cgroup == ""
        eventually(lambda: states(job.pid) == {"T"}, "the stop")
        assert states(neighbour.pid) <= {"S", "R"}


def test_a_quiet_job_in_a_cgroup_of_its_own_is_frozen_and_ended_there() -> None:
    with cgroup("quiet") as folder, running(*python(DEAF)) as job:
        enter(folder, job.pid)
        held = hold(job.pid)
        assert held.cgroup == str(folder)
        eventually(lambda: pauser.is_paused(held) is True, "the freeze")
        pauser.terminate(held)
        eventually(lambda: pauser.is_paused(held) is False, "the thaw")
        pauser.kill(HOST, held, {US})
        job.wait()
        eventually(lambda: pauser.has_ended(held), "the end")


def test_a_look_finds_us_with_our_user_and_memory() -> None:
    own = ProcessTree(scan(HOST, cgroups=True).processes, {}).by_pid[os.getpid()]

    assert (own.uid, own.parent) == (US, os.getppid())
    assert own.memory_bytes > 1 << 20
    assert own.program.startswith("python")


@pytest.mark.parametrize("path", ["", "/", "/..", "/a/../b", "a", "/a//b", "/a/./b"])
def test_what_is_no_path_of_a_cgroup_leads_nowhere(path: str) -> None:
    assert freezer.folder_of(path) == ""


def test_an_identity_is_that_of_the_process_that_was_looked_at() -> None:
    (one, *_) = pauser.exact_processes([ProcessTree(scan(HOST).processes, {}).by_pid[os.getpid()]])

    assert isinstance(one, ExactProcess)
    assert state_of(one) == "R"


#: in a terminal of its own, as what a shell has started there
IN_TERMINAL = f"""
import os, pty, sys
pid, line = pty.fork()
if pid == 0:
    os.execv(sys.executable, [sys.executable, "-c", {IDLE!r}])
while b"ready" not in os.read(line, 100): pass
print("ready", flush=True)
import time; time.sleep(600)
"""


def test_a_job_of_a_terminal_is_stopped_so_that_its_shell_learns_of_it_even_where_it_could_be_frozen() -> None:
    with cgroup("terminal") as folder, running(*python(IN_TERMINAL)) as emulator:
        (_, job) = below(emulator.pid)
        enter(folder, job.pid)
        held = hold(job.pid)
        assert held.cgroup == ""
        eventually(lambda: state_of(job) == "T", "the stop")
        held_jobs.resume(held)


def test_a_cgroup_into_which_somebody_else_comes_at_the_last_moment_is_thawed(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_pages_of_files_are_nobodys_memory_and_those_of_files_in_ram_are_told_apart(tmp_path: Path) -> None:
    with running(*python(MAPS), str(tmp_path)) as reader, running(*python(MAPS), "/dev/shm") as sharer:
        found = {one.pid: one for one in scan(HOST).processes}
        on_disk, in_ram = found[reader.pid], found[sharer.pid]

        assert in_ram.shared_bytes >= 64 << 20
        assert on_disk.memory_bytes < 40 << 20
        assert in_ram.with_shared().memory_bytes == in_ram.memory_bytes + in_ram.shared_bytes
