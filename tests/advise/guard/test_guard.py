"""Output, signals and exit status of a guarded command are unchanged; nothing of it outlives its limit."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.advise.guard.box import box
from tests.support.daemons import eventually
from tests.support.elsewhere import hearing
from wslgpud.advise.guard.relay import own_log
from wslgpud.advise.guard.runner import GuardedCommand
from wslgpud.advise.guard.usage import RunStats
from wslgpud.cli.guard import _sum_up

GUARD = [sys.executable, "-m", "wslgpud", "guard"]


def guard(tmp_path: Path, *arguments: str, **more):
    options = ("--state", str(tmp_path / "state"))
    return subprocess.run([*GUARD, *options, *arguments], capture_output=True, text=True, check=False, **more)


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen:
    options = ("--state", str(tmp_path / "state"))
    return subprocess.Popen(
        [*GUARD, *options, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_output_status_and_input_are_the_commands_own(tmp_path):
    done = guard(tmp_path, "--", "sh", "-c", "cat; echo oh >&2; exit 3", input="hello\n")

    assert (done.returncode, done.stdout) == (3, "hello\n")
    assert done.stderr.splitlines()[1] == "oh"
    assert "exit status 3" in done.stderr


def test_a_failure_named_in_the_last_lines_comes_with_advice(tmp_path):
    program = "import sys; print('RuntimeError: CUDA driver error: device not ready', file=sys.stderr); sys.exit(1)"

    failed = guard(tmp_path, sys.executable, "-c", program)
    ended = guard(tmp_path, sys.executable, "-c", program.replace("sys.exit(1)", "sys.exit(0)"))

    assert failed.returncode == 1
    assert "[guard] by its last lines: the card's memory was used up, even if some looks free" in failed.stderr
    assert "by its last lines" not in ended.stderr


def test_all_that_is_printed_is_kept(tmp_path):
    guard(tmp_path, "--log", str(tmp_path / "log"), "--", "sh", "-c", "echo one; echo two >&2")

    assert sorted((tmp_path / "log").read_text().split()) == ["one", "two"]


def test_the_build_is_told_how_many_jobs_fit(tmp_path):
    done = guard(tmp_path, "-j", "3", "--", "sh", "-c", "echo $MAX_JOBS $CMAKE_BUILD_PARALLEL_LEVEL $MAKEFLAGS")
    left_alone = guard(tmp_path, "-j", "off", "--", "sh", "-c", "echo [$MAX_JOBS]", env={**os.environ})

    assert done.stdout == "3 3 -j3\n"
    assert left_alone.stdout == "[]\n"


def test_compilers_are_the_kernels_first_choice_and_nothing_else(tmp_path):
    shutil.copy("/bin/sleep", tmp_path / "cc1plus")
    marked = "[ $(cat /proc/$!/oom_score_adj) = 300 ]"
    script = f"./cc1plus 60 & until {marked}; do sleep 0.1; done; cat /proc/$$/oom_score_adj; kill $!"
    done = guard(tmp_path, "--", "sh", "-c", script, cwd=tmp_path, timeout=60)

    assert done.stdout == Path("/proc/self/oom_score_adj").read_text()


def test_a_command_that_is_not_there_ends_as_in_a_shell(tmp_path):
    assert guard(tmp_path, "--", "/no/such/program").returncode == 127


def test_a_command_that_a_signal_ends_ends_as_in_a_shell(tmp_path):
    assert guard(tmp_path, "--", "sh", "-c", "kill -SEGV $$").returncode == 128 + signal.SIGSEGV


@pytest.mark.slow
def test_the_timeout_kills_even_processes_outside_the_session(tmp_path):
    script = "setsid sh -c 'echo $$ >left; exec sleep 300' & sleep 300 & echo $! >near; wait"
    done = guard(tmp_path, "--timeout", "4s", "--", "sh", "-c", script, cwd=tmp_path)

    assert done.returncode == 124
    assert "time limit reached" in done.stderr
    assert not alive((tmp_path / "left").read_text())
    assert not alive((tmp_path / "near").read_text())


def test_a_command_that_closes_its_output_is_still_waited_for(tmp_path):
    assert guard(tmp_path, "--", "sh", "-c", "exec >&- 2>&-; sleep 1; exit 5").returncode == 5


def test_the_fallback_is_tried_once_and_its_status_counts(tmp_path):
    done = guard(tmp_path, "--fallback", "echo plan b; exit 5", "--", "false")

    assert (done.returncode, done.stdout) == (5, "plan b\n")
    assert guard(tmp_path, "--fallback", "echo plan b", "--", "true").stdout == ""


def test_a_signal_reaches_the_program_and_its_exit_code_counts(tmp_path):
    code = "trap 'echo got; exit 7' USR1; echo ready; while :; do sleep 0.1; done"
    process = start(tmp_path, "--fallback", "echo no", "--", "sh", "-c", code)
    assert process.stdout.readline() == "ready\n"

    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate()

    assert out == "got\nno\n"  # an ending of its own: not interrupted


def test_sigterm_ends_the_whole_tree_and_starts_no_fallback(tmp_path):
    process = start(tmp_path, "--fallback", "echo no", "--", "sh", "-c", "sleep 300 & echo $!; wait")
    sleeper = process.stdout.readline()

    process.terminate()
    out, _ = process.communicate()

    assert out == ""
    assert process.returncode == 128 + signal.SIGTERM
    assert not alive(sleeper)


def test_a_full_disk_ends_neither_the_command_nor_its_own_status(tmp_path):
    command = ("--", "sh", "-c", "echo one; echo two >&2; exit 3")
    full = guard(tmp_path, "--log", "/dev/full", *command)
    with Path("/dev/full").open("wb") as nowhere:
        deaf = subprocess.run([*GUARD, "--state", str(tmp_path), *command], stdout=nowhere, stderr=nowhere, check=False)

    assert (full.returncode, full.stdout) == (3, "one\n")
    assert full.stderr.count("the log ends here: No space left on device") == 1
    assert deaf.returncode == 3


#: runs a command that closes its output, and prints how often it was asked whether it has ended
COUNTS = """
import os, subprocess
from wslgpud.advise.guard.relay import Relay
from wslgpud.advise.guard.runner import GuardedCommand, GuardedRun
from wslgpud.advise.guard.usage import VramWatch
from wslgpud.config import Config
from wslgpud.host import Host
asked, ended = [], subprocess.Popen.poll
subprocess.Popen.poll = lambda child: asked.append(child) or ended(child)
command = GuardedCommand(["sh", "-c", "exec >&- 2>&-; sleep 3; exit 7"], dict(os.environ))
with Relay(None) as relay:
    stats = GuardedRun(command, Host(), relay, VramWatch(Host(), Config())).to_end()
print(stats.code, len(asked))
"""


@pytest.mark.slow
def test_a_silent_command_is_waited_for_without_busy_polling():
    done = subprocess.run([sys.executable, "-c", COUNTS], capture_output=True, text=True, check=True)
    code, asked = map(int, done.stdout.split())

    assert code == 7
    assert asked < 90  # ten times a second, and at each look


def test_under_nohup_guard_and_command_ignore_the_hangup(tmp_path):
    script = "kill -HUP $PPID $$; sleep 1; echo alive"
    nohup = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    done = subprocess.run(
        [*nohup, *GUARD, "--state", str(tmp_path), "--", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "alive\n")


#: Ends with 40 and how often Ctrl-C came, once it is asked by another signal.
COUNT = """
import os, signal, sys, time
came = []
signal.signal(signal.SIGINT, lambda *_: (came.append(1), os.write(1, b"heard\\n")))  # print may be interrupted in print
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(40 + len(came)))
os.write(1, b"ready\\n")
while True:
    time.sleep(60)
"""


def test_ctrl_c_arrives_once_even_if_the_command_reads_a_file(tmp_path):
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(Path(__file__).parents[3])
        line = [*GUARD, "--state", str(tmp_path), "--", sys.executable, "-c", COUNT]
        os.execv("/bin/sh", ["sh", "-c", 'exec "$@" </dev/null', "sh", *line])  # noqa: S606 - as above

    def until(word: bytes) -> None:
        said = b""
        while word not in said:
            said += os.read(master, 4096)

    until(b"ready")
    os.write(master, b"\x03")
    until(b"heard")
    os.kill(pid, signal.SIGUSR1)  # the guard takes one signal after the other
    _, status = os.waitpid(pid, 0)
    os.close(master)

    assert os.waitstatus_to_exitcode(status) == 41


def test_concurrent_guards_keep_their_own_logs_and_peaks(tmp_path):
    first = start(tmp_path, "--", "sh", "-c", "echo first; read line")
    assert first.stdout.readline() == "first\n"
    guard(tmp_path, "--", "echo", "second")
    first.communicate("\n")

    logs = sorted(log.read_text() for log in (tmp_path / "state/guard").iterdir())
    known = json.loads((tmp_path / "state/guard.json").read_text())["commands"]
    assert logs == ["first\n", "second\n"]
    assert list(known) == ["echo second", "sh -c echo first; read line"]


def test_a_training_that_outlasts_twenty_builds_keeps_its_log(tmp_path):
    for number in range(30):
        (tmp_path / "guard").mkdir(exist_ok=True)
        log = tmp_path / "guard" / f"2026010{number // 10}-0000{number % 10}0-make.log"
        log.touch()
        os.utime(log, (0, 9999 if number == 0 else number))
    new, stream = own_log(tmp_path, ["make"])
    stream.close()

    kept = sorted(log.name for log in (tmp_path / "guard").iterdir())
    assert len(kept) == 20
    assert new.name in kept
    assert kept[0] == "20260100-000000-make.log"
    assert str(os.getpid()) in new.name


def test_oom_kills_are_reported_even_without_a_job_count(tmp_path, capfd):
    order = GuardedCommand(["make"], {"MAX_JOBS": ""})
    _sum_up(RunStats(code=137, oom_kills=1), order, tmp_path / "log")

    assert "killed 1 process for lack of memory" in capfd.readouterr().err


@pytest.mark.slow
def test_a_program_keeps_its_terminal_with_a_live_line_below(tmp_path):
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(Path(__file__).parents[3])
        os.execv(  # noqa: S606 - a terminal of its own is what this is about
            sys.executable,
            [
                *GUARD,
                "--state",
                str(tmp_path),
                "--timeout",
                "50s",
                "--",
                "sh",
                "-c",
                "test -t 1 && echo terminal; sleep 2; echo end",
            ],
        )
    said = b""
    while select.select([master], [], [], 180)[0]:
        try:
            said += os.read(master, 4096)
        except OSError:
            break
    os.waitpid(pid, 0)
    os.close(master)

    assert b"terminal\r\n" in said
    assert re.search(rb"\[guard\] 0:00:\d\d of 0:00:50", said)
    assert b"\r\x1b[2Kend\r\n" in said


def test_peaks_are_shown_and_remembered(tmp_path):
    eat = "x = b'x' * (300 << 20); input()"
    with hearing(tmp_path / "state") as runs:
        process = start(tmp_path, "--", sys.executable, "-c", eat)

        def seen() -> bool:
            own = (run.document for run in runs.read() if run.who.pid == process.pid)
            return any(document.get("peak_bytes", 0) > 300 << 20 for document in own)

        eventually(seen, "its memory in what the guard announces")
        _, said = process.communicate("\n")

    known = json.loads((tmp_path / "state/guard.json").read_text())["commands"]
    (facts,) = known.values()
    assert 300 << 20 < facts["peak_bytes"] < 400 << 20
    assert "peak RAM 3" in said
    assert "least left: " in said


def test_a_program_that_leaves_orphans_behind_leaves_no_zombies(tmp_path):
    orphans = "for i in 1 2 3 4 5; do (sh -c 'echo $$ >>orphans' &) ; done"
    all_of_them = "until [ $(wc -l 2>/dev/null <orphans || echo 0) = 5 ]; do sleep 0.1; done"
    gone = "for pid in $(cat orphans); do while [ -e /proc/$pid ]; do sleep 0.1; done; done"
    done = guard(tmp_path, "--", "sh", "-c", f"{orphans}; {all_of_them}; {gone}; echo none", cwd=tmp_path)

    assert done.stdout == "none\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--timeout", "soon", "--", "true"], "write 90s, 5min, 2h"),
        (["--jobs", "0", "--", "true"], "write a number, auto or off"),
        (["--save-signal", "HELLO", "--", "true"], "there is no such signal"),
        (["--log", "/no/such/folder/log", "--", "true"], "cannot write the log"),
    ],
)
def test_a_wish_that_cannot_be_met_is_said_before_anything_runs(tmp_path, arguments, words):
    done = guard(tmp_path, *arguments)

    assert done.returncode == 2
    assert words in done.stderr
    assert len([line for line in done.stderr.splitlines() if "wslgpud:" in line]) == 1


#: Grows on only after the guard has looked: where the machine is slow, both are.
GROW = """
import os, signal, sys, time
from wslgpud.host import Host
from pathlib import Path
from tests.support.elsewhere import hearing
hearing_all = hearing(Path(sys.argv[1]))
runs = hearing_all.__enter__()
def seen():
    notes = [note for note in runs.read() if note.who.pid == os.getppid()]
    return max((note.document.get("peak_bytes", 0) for note in notes), default=0)
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
kept = []
while True:
    kept.append(bytearray(b"x" * (4 << 20)))
    time.sleep(0.05)
    while len(kept) * (4 << 20) > seen() + (48 << 20):
        time.sleep(0.05)
"""


@pytest.mark.slow
def test_a_program_is_asked_to_save_before_memory_runs_out(tmp_path):
    options = ("--state", str(tmp_path), "--jobs", "off", "--save-signal", "USR1", "--")
    with box(500 << 20) as inside:
        done = subprocess.run(
            [*inside, *GUARD, *options, sys.executable, "-c", GROW, tmp_path],
            capture_output=True,
            text=True,
            check=False,
        )

    assert (done.returncode, done.stdout) == (0, "saved\n"), done.stderr
    assert "to save its work" in done.stderr
