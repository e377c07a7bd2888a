"""Runs inside the machine: executes what the tests ask for over a virtio-serial port, one JSON line each.

Started by ``agent.service`` with an OOM score of -1000 and locked into memory, so that it answers in the
middle of the exhaustion that the tests are about. What it starts is as killable as any other program.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

PORT = Path("/dev/virtio-ports/tests")
LOCK_CURRENT_AND_FUTURE = 3  # MCL_CURRENT | MCL_FUTURE


def become_killable() -> None:
    """Give up the agent's protection, which children inherit: nothing could be OOM-killed otherwise."""
    Path("/proc/self/oom_score_adj").write_text("0", encoding="ascii")


def memory_file() -> BinaryIO:
    """Return an anonymous file that lives in memory."""
    return os.fdopen(os.memfd_create("stream"), "w+b")


def execute(request: dict[str, Any]) -> dict[str, Any]:
    """Run one command to its end, or kill its whole session at the time limit.

    Streams are files in memory: not pipes, because a background child that keeps one open would block the
    answer; not on the disk, because tests fill it and cut its power.
    """
    with memory_file() as given, memory_file() as out, memory_file() as err:
        given.write(base64.b64decode(request["stdin"]))
        given.seek(0)
        try:
            child = subprocess.Popen(
                request["argv"],
                stdin=given,
                stdout=out,
                stderr=err,
                env={**os.environ, **request["env"]},
                cwd="/root",
                start_new_session=True,
                preexec_fn=become_killable,  # noqa: PLW1509 -- the agent has one thread
            )
        except OSError as error:
            return {"error": str(error)}
        try:
            returncode = child.wait(request["timeout_seconds"])
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return {"error": f"still running after {request['timeout_seconds']} s, killed"}
        out.seek(0)
        err.seek(0)
        return {
            "returncode": returncode,
            "stdout": base64.b64encode(out.read()).decode(),
            "stderr": base64.b64encode(err.read()).decode(),
        }


def main() -> None:
    """Say hello, then answer requests until the machine ends."""
    if ctypes.CDLL(None, use_errno=True).mlockall(LOCK_CURRENT_AND_FUTURE) != 0:
        sys.exit("agent: mlockall: " + os.strerror(ctypes.get_errno()))
    while not PORT.exists():  # udev makes it, on a busy machine later than systemd starts us
        time.sleep(0.1)
    with PORT.open("r+b", buffering=0) as port:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        port.write(json.dumps({"hello": boot_id}).encode() + b"\n")
        for line in open(port.fileno(), "rb", closefd=False):  # noqa: SIM115 -- a buffered view of the port
            answer = memoryview(json.dumps(execute(json.loads(line))).encode() + b"\n")
            while answer:  # a raw write may take only a part
                answer = answer[port.write(answer) :]


if __name__ == "__main__":
    main()
