"""Supervises one child process that answers in JSON lines, and survives its hangs and crashes.

A request is answered before its timeout, or the child is killed; a child that hangs, crashes or exits is restarted
after 1, 2, 4, ... 60 seconds. No call waits longer than its timeout plus about a second for the child to die, and none
leaves a zombie or an open file.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from wslgpud.security import safe_files
from wslgpud.words import Message, MessageError, MessageLike, cause, say
from wslgpud.words.units import one_line

MIN_DELAY_SECONDS, MAX_DELAY_SECONDS = 1.0, 60.0
#: A child that ran this long was healthy: the next restart is quick again.
HEALTHY_SECONDS = 60.0
_CRASHES = frozenset({-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE})
#: Size limit of an answer: nonsense must not fill the daemon's memory.
MAX_ANSWER = 4 << 20


class ProbeDown(MessageError):
    """No answer; the message says why, and stays the same until something changes."""


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of our modules in a new Python process."""
    return [sys.executable, "-m", module, *arguments]


def clean_environment() -> dict[str, str]:
    """Return a minimal environment for a child, so that its behaviour does not depend on the shell.

    ``PYTHONPATH`` begins with where this very package lies, so that parent and child are the same version.
    """
    inherited = {k: os.environ[k] for k in ("PATH", "HOME", "LD_LIBRARY_PATH") if k in os.environ}
    here = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    return {**inherited, "LANG": "C.UTF-8", "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


@dataclass(eq=False)
class Supervisor:
    """One child at a time. ``ask`` is for one thread; any thread may call ``close``.

    ``name`` is the child's name in messages, ``start_timeout_seconds`` the timeout of its first answer, including its
    start. ``mono`` times restarts; timeouts always use the real clock.
    """

    name: MessageLike
    command: Sequence[str]
    _: KW_ONLY
    timeout_seconds: float
    start_timeout_seconds: float
    environment: Mapping[str, str] = field(default_factory=clean_environment)
    cwd: str = "/"
    mono: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.starts_total = self.hangs_total = self.crashes_total = 0
        #: whether the last child ended by a bug in its own code
        self.crashed = False
        self._child: _Child | None = None
        self._born, self._not_before = float("inf"), float("-inf")
        self._unkillable: _Child | None = None
        self._delay_seconds = MIN_DELAY_SECONDS
        self._reason: MessageLike = ""
        self._last_exit = Message("")
        self._closed = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        child = self._child
        return child.process.pid if child else None

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send ``request`` and return the answer, starting a child where none runs; else raise ProbeDown."""
        with self._lock:
            if self._closed:
                raise ProbeDown("{probe} is closed", probe=self.name)
            limit = self.timeout_seconds
            if self._child is None:
                self._child = self._start()
                limit = self.start_timeout_seconds
            try:
                return self._child.ask(request, limit, lambda: self._closed)
            except _Hung:
                self.hangs_total += 1
                reason = say(
                    "{probe} did not answer within {limit_seconds} and was killed", probe=self.name, limit_seconds=limit
                )
            except _Gone as gone:
                if self._closed:
                    raise ProbeDown("{probe} is closed", probe=self.name) from gone
                self.crashes_total += 1
                self._end(kill=True)
                reason = self._last_exit
                if gone.args:
                    reason = say("{end} ({answer})", end=reason, answer=gone.args[0])
            self._failed(reason)
            raise ProbeDown(reason)

    def fail(self, reason: MessageLike) -> None:
        """End a child whose answers show that it is useless; the next one starts after the usual delay."""
        with self._lock:
            self._failed(reason)

    def renew(self) -> None:
        """End the child; the next starts without delay, as nothing went wrong."""
        with self._lock:
            self._end()

    def close(self) -> None:
        """End the child for good; a request under way ends at once."""
        self._closed = True
        with self._lock:
            self._end()

    def _start(self) -> _Child:
        if self.mono() < self._not_before:
            raise ProbeDown(self._reason)
        if self._unkillable is not None and not self._unkillable.reap():
            # It hangs in the kernel, unreachable by SIGKILL. One more each minute would fill the process table.
            pid = self._unkillable.process.pid
            raise ProbeDown("{probe} (pid {pid}) hangs in the driver and cannot be killed", probe=self.name, pid=pid)
        try:
            child = _Child(self.command, self.environment, self.cwd)
        except OSError as error:
            reason = say("cannot start {program}: {why}", program=self.name, why=cause(error))
            self._failed(reason)
            raise ProbeDown(reason) from error
        self.starts_total += 1
        self._born = self.mono()
        return child

    def _failed(self, reason: MessageLike) -> None:
        now = self.mono()
        if now - self._born >= HEALTHY_SECONDS:
            self._delay_seconds = MIN_DELAY_SECONDS
        self._born = float("inf")
        self._end(kill=True)
        self._not_before = now + self._delay_seconds
        self._delay_seconds = min(2 * self._delay_seconds, MAX_DELAY_SECONDS)
        self._reason = reason

    def _end(self, *, kill: bool = False) -> None:
        """End the child and keep how it ended; ``kill`` skips the graceful attempts."""
        child, self._child = self._child, None
        if child is None:
            return
        if not child.end(kill=kill):
            self._unkillable = child
        self.crashed = child.process.returncode in _CRASHES
        self._last_exit = describe_exit(self.name, child.process.returncode, child.complaint)


class _Hung(Exception):
    """No answer in time."""


class _Gone(Exception):
    """The child ended, or its answer was nonsense (then the message says so)."""


class _Child:
    """A running process with its three pipes."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], cwd: str) -> None:
        # The child must never block on standard error: beyond the pipe's 64 KiB, output is dropped.
        self._errors, errors_of_child = os.pipe()
        os.set_blocking(errors_of_child, False)
        os.set_blocking(self._errors, False)
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors_of_child,
                bufsize=0,
                env=environment,
                cwd=cwd,
                start_new_session=True,  # Ctrl-C in a terminal must reach the daemon only
            )
        except OSError:
            os.close(self._errors)
            raise
        finally:
            os.close(errors_of_child)
        self._requests = cast("IO[bytes]", self.process.stdin)
        self._answers = cast("IO[bytes]", self.process.stdout)
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)
        self.complaint = ""

    def ask(self, request: Mapping[str, Any], limit: float, cancelled: Callable[[], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + limit
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise _Gone from error
        received = b""
        while not received.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0:
                raise _Hung
            if cancelled():
                raise _Gone
            # In slices, so that shutting down does not wait for a driver.
            if not self._poll.poll(min(left, 0.1) * 1000 + 1):
                continue
            chunk = os.read(self._answers.fileno(), 1 << 16)
            received += chunk
            if not chunk:
                raise _Gone
            if len(received) > MAX_ANSWER:
                raise _Gone(say("it answered more than {most_bytes}", most_bytes=MAX_ANSWER))
        try:
            return safe_files.parsed(received)
        except ValueError as error:
            raise _Gone(say("its answer is not a JSON object: {answer}", answer=repr(received[:80]))) from error

    def end(self, *, kill: bool) -> bool:
        """End the process: close its input, then SIGTERM, then SIGKILL. Return whether it is gone."""
        self._requests.close()
        # A child that reads its input exits by itself; one whose pipe has just broken is exiting already.
        for number, patience in ((0, 0.05 if kill else 0.5), (signal.SIGTERM, 0.2), (signal.SIGKILL, 1.0)):
            self.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)
                break
        with contextlib.suppress(BlockingIOError):
            stderr_text = os.read(self._errors, 1 << 16).decode("utf-8", "replace").strip()
            self.complaint = one_line(stderr_text.splitlines()[-1], 300) if stderr_text else ""
        self._answers.close()
        os.close(self._errors)
        return self.reap()

    def reap(self) -> bool:
        """Reap the process if it has ended."""
        return self.process.poll() is not None


def describe_exit(name: MessageLike, code: int | None, complaint: str) -> Message:
    """Return how a process ended, with its last line on standard error."""
    if code is None:
        how = say("{probe} does not end", probe=name)
    elif code < 0:
        names = {number.value: number.name for number in signal.Signals}  # most real-time signals have no name
        how = say("{probe} was killed by {signal}", probe=name, signal=names.get(-code, f"signal {-code}"))
    else:
        how = say("{probe} ended with status {status}", probe=name, status=code)
    return say("{end}: {complaint}", end=how, complaint=complaint) if complaint else how
