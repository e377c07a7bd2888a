"""Real jobs are paused and resumed completely, and no other process is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.brake.real_jobs import FORKING, IDLE, US, below, job_of, python, running, states
from tests.support.daemons import eventually
from wslgpud.brake import paused_job, watchdog
from wslgpud.brake.process_tree import ProcessTree, rescan, scan
from wslgpud.brake.watchdog import HeldJob
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


def hold(*pids: int, note: paused_job.Register = lambda _: "") -> HeldJob:
    held, problem = paused_job.pause(HOST, *job_of(*pids), {US}, note)
    assert problem == ""
    return held


def test_a_constantly_forking_job_is_fully_stopped_and_resumed() -> None:
    with running(*python(FORKING)) as forking:
        noted: list[HeldJob] = []
        held = hold(forking.pid, note=lambda grip: noted.append(grip) or "")  # type: ignore[func-returns-value]
        eventually(lambda: states(forking.pid) == {"T"}, "the stop of all processes")

        assert paused_job.is_paused(held)
        assert noted[-1] == held
        assert {one.pid for one in below(forking.pid)} <= {one.pid for one in held}

        watchdog.resume(held)
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
        held, problem = paused_job.pause(HOST, found, seen, {US}, lambda _: "")

        assert (problem, {one.pid for one in held}) == ("", {job.pid, shell.pid})


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

        assert [one.pid for one in held] == [job.pid]
        assert state_of(neighbour) in "SR"
        assert state_of(below(shell.pid)[0]) in "SR"


def test_of_a_shell_script_only_its_children_are_stopped() -> None:
    with running("/bin/sh", "-c", SCRIPT.format(python=sys.executable)) as shell:
        own, programs = below(shell.pid)[0], programs_of(shell.pid)
        held = hold(shell.pid)
        eventually(lambda: {state_of(one) for one in programs} == {"T"}, "the stop of its children")

        assert own not in held
        assert state_of(own) in "SR"


def test_resuming_a_job_does_not_wake_what_the_user_stopped() -> None:
    code = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {IDLE!r}])\nimport time; time.sleep(600)"
    with running(*python(code)) as job:
        child = below(job.pid)[1]
        os.kill(child.pid, signal.SIGSTOP)
        eventually(lambda: state_of(child) == "T", "the stop by the user")
        held = hold(job.pid)
        watchdog.resume(held)
        eventually(lambda: state_of(below(job.pid)[0]) in "SR", "the resumption")

        assert state_of(child) == "T"


def test_a_reused_pid_is_never_signalled() -> None:
    with running(*python(IDLE)) as stranger:
        earlier = below(stranger.pid)[0]._replace(start_ticks=1)

        assert send(earlier, signal.SIGSTOP) == "its pid belongs to another process now"
        assert watchdog.stop((earlier,)) == watchdog.resume((earlier,)) == "", "it has ended"
        assert state_of(earlier) == ""
        assert states(stranger.pid) <= {"S", "R"}


def test_no_process_is_stopped_before_it_is_registered() -> None:
    with running(*python(IDLE)) as job:
        held, problem = paused_job.pause(HOST, *job_of(job.pid), {US}, lambda _: "the disk is full")

        assert (held, problem) == ((), "the disk is full")
        assert states(job.pid) <= {"S", "R"}


def test_a_job_that_cannot_be_registered_completely_is_resumed() -> None:
    with running(*python(FORKING)) as forking:
        calls: list[HeldJob] = []

        def only_once(held: HeldJob) -> str:
            calls.append(held)
            return "the disk is full" if len(calls) > 1 else ""

        held, problem = paused_job.pause(HOST, *job_of(forking.pid), {US}, only_once)
        if problem:  # it may have had no child at that moment
            assert held == ()
            eventually(lambda: "T" not in states(forking.pid), "the resumption")


def test_a_manual_sigcont_is_detected() -> None:
    with running(*python(IDLE)) as job:
        held = hold(job.pid)
        eventually(lambda: states(job.pid) == {"T"}, "the stop")
        os.kill(job.pid, signal.SIGCONT)
        eventually(lambda: paused_job.is_paused(held) is False, "the resumption")
        job.kill()
        job.wait()

        assert paused_job.is_paused(held) is None


def test_a_terminated_job_may_save_first() -> None:
    with running(*python(SAVES)) as job:
        held = hold(job.pid)
        paused_job.terminate(held)

        assert job.stdout.readline() == "saved\n"
        job.wait()
        assert paused_job.has_ended(held)


def test_a_job_that_ignores_sigterm_is_killed() -> None:
    with running(*python(DEAF)) as job:
        held = hold(job.pid)
        paused_job.terminate(held)
        assert not paused_job.has_ended(held)
        paused_job.kill(HOST, held, {US})

        assert job.wait() == -signal.SIGKILL


def test_a_job_that_becomes_a_shell_to_clean_up_is_killed() -> None:
    becomes = "import os, signal, time; signal.signal(15, lambda *_: os.execlp('sh', 'sh', '-c', 'sleep 600; true'))\n"
    with running(*python(becomes + IDLE)) as job:
        held = hold(job.pid)
        paused_job.terminate(held)
        eventually(lambda: Path(f"/proc/{job.pid}/comm").read_text() == "sh\n", "the shell")
        paused_job.kill(HOST, held, {US})

        assert job.wait(timeout=60) == -signal.SIGKILL


def test_a_job_that_cannot_be_fully_stopped_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "stop", lambda _: "not permitted")
    with running(*python(IDLE)) as job:
        assert paused_job.pause(HOST, *job_of(job.pid), {US}, lambda _: "") == ((), "not permitted")
        assert states(job.pid) <= {"S", "R"}


def test_a_scan_finds_this_process_with_its_user_and_memory() -> None:
    own = ProcessTree(scan(HOST).processes, {}).by_pid[os.getpid()]

    assert (own.uid, own.parent) == (US, os.getppid())
    assert own.memory_bytes > 1 << 20
    assert own.program.startswith("python")


def test_the_identity_of_a_scanned_process_can_be_signalled() -> None:
    (one, *_) = paused_job.exact_processes([ProcessTree(scan(HOST).processes, {}).by_pid[os.getpid()]])

    assert isinstance(one, ExactProcess)
    assert state_of(one) == "R"


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
