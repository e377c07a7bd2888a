"""Which process it is, and whether it still runs."""

from __future__ import annotations

import os
import signal
import subprocess

from wslgpud.host import Host
from wslgpud.security.exact_signals import ExactProcess, send, state_of
from wslgpud.sources.procfs import identity


def test_a_process_has_a_state_until_it_ends_and_only_as_itself() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        found = identity(Host(), child.pid)
        assert found is not None
        whom = ExactProcess(child.pid, found.start_ticks, os.getuid())
        assert state_of(whom) in ("R", "S", "D")
        assert state_of(whom._replace(start_ticks=whom.start_ticks + 1)) == ""
        assert send(whom._replace(uid=os.getuid() + 1), signal.SIGTERM) == "it is another user's"
        assert send(whom, signal.SIGKILL) == ""
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert state_of(whom) == "", "a zombie"
    assert state_of(whom) == ""


def test_the_system_and_we_ourselves_get_no_signal() -> None:
    said = [send(ExactProcess(pid, 0, 0), signal.SIGURG) for pid in (0, 1, os.getpid())]
    assert said == ["it is the system's or our own"] * 3
