"""Keeps one child process that answers JSON lines, and survives whatever the child does.

A request is answered within its time, or the child is killed; a child that hangs, crashes or gives up is
started again after 1, 2, 4, ... 60 seconds. Nothing here waits longer than the time it was given plus about
a second for the child to die, and nothing is left behind: no zombie, no open file.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wslgpud import documents
from wslgpud.units import one_line
from wslgpud.words import Message, Said, Told, failure, say

LONGEST_DELAY_SECONDS = 60.0
#: A child that lived so long was well: the next restart is quick again.
HEALTHY_SECONDS = 60.0
#: More in one answer than this is nonsense, and must not fill the daemon's memory.
LARGEST_ANSWER = 4 << 20


class ProbeDown(Told):
    """There is no answer; the message says why, and stays the same until something changes."""


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of our modules in a Python of its own."""
    return [sys.executable, "-m", module, *arguments]


def clean_environment() -> dict[str, str]:
    """Return the environment for a child: little of ours, so that its behaviour does not depend on a shell.

    ``PYTHONPATH`` begins with where this very package lies, so that parent and child are the same version.
    """
    kept = {k: os.environ[k] for k in ("PATH", "HOME", "LD_LIBRARY_PATH") if k in os.environ}
    here = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    return {**kept, "LANG": "C.UTF-8", "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


class Supervisor:
    """One child at a time. ``ask`` is for one thread; ``close`` may come from any."""

    def __init__(  # noqa: PLR0913 - what to run and its limits
        self,
        name: Said,
        command: Sequence[str],
        *,
        timeout_seconds: float,
        start_timeout_seconds: float,
        environment: Mapping[str, str] | None = None,
        cwd: str = "/",
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start nothing yet.

        Args:
            name: what messages call the child ("NVML probe").
            command: the program and its arguments.
            timeout_seconds: time for an answer.
            start_timeout_seconds: time for the first answer of a child, its start included.
            environment: all of the child's environment; by default ``clean_environment()``.
            cwd: folder in which the child starts.
            mono: clock for the time between restarts. Waiting for answers goes by the real clock always.
        """
        self.name = name
        self.starts_total = 0
        self.hangs_total = 0
        self.crashes_total = 0
        self._command = list(command)
        self._timeout = timeout_seconds
        self._start_timeout = start_timeout_seconds
        self._environment = dict(clean_environment() if environment is None else environment)
        self._cwd = cwd
        self._mono = mono
        self._child: _Child | None = None
        self._born: float | None = None
        self._undead: list[_Child] = []
        self._failures = 0
        self._not_before: float | None = None
        self._reason: Said = ""
        self._epitaph = Message("")
        self._closed = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Process id of the child, if one runs."""
        child = self._child
        return None if child is None else child.process.pid

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send ``request`` and return the answer, starting a child where none runs.

        Raises:
            ProbeDown: the child hung, crashed, answered nonsense, or waits for its next start.
        """
        with self._lock:
            if self._closed:
                raise ProbeDown(say("{probe} is closed", probe=self.name))
            limit = self._timeout
            if self._child is None:
                self._child = self._start()
                limit = self._start_timeout
            try:
                return self._child.ask(request, limit, lambda: self._closed)
            except _Hung:
                self.hangs_total += 1
                reason = say(
                    "{probe} did not answer within {limit_seconds} and was killed",
                    probe=self.name,
                    limit_seconds=limit,
                )
            except _Gone as gone:
                if self._closed:
                    raise ProbeDown(say("{probe} is closed", probe=self.name)) from gone
                self.crashes_total += 1
                self._end(kill=True)
                reason = self._epitaph
                if gone.args:
                    reason = say("{end} ({answer})", end=reason, answer=gone.args[0])
            self._failed(reason)
            raise ProbeDown(reason)

    def fail(self, reason: Said) -> None:
        """End a child whose answers show that it is of no use; the next one starts after the usual delay."""
        with self._lock:
            self._failed(reason)

    def renew(self) -> None:
        """End the child without any delay for the next: it did nothing wrong."""
        with self._lock:
            self._end()

    def close(self) -> None:
        """End the child for good; a request under way ends at once."""
        self._closed = True
        with self._lock:
            self._end()

    def _start(self) -> _Child:
        if self._not_before is not None and self._mono() < self._not_before:
            raise ProbeDown(self._reason)
        self._undead = [child for child in self._undead if not child.reap()]
        if self._undead:
            # It sits in the kernel, beyond SIGKILL. One more each minute would fill the process table.
            pid = self._undead[0].process.pid
            raise ProbeDown(
                say("{probe} (pid {pid}) hangs in the driver and cannot be killed", probe=self.name, pid=pid)
            )
        try:
            child = _Child(self._command, self._environment, self._cwd)
        except OSError as error:
            reason = say("cannot start {program}: {why}", program=self.name, why=failure(error))
            self._failed(reason)
            raise ProbeDown(reason) from error
        self.starts_total += 1
        self._born = self._mono()
        return child

    def _failed(self, reason: Said) -> None:
        now = self._mono()
        if self._born is not None and now - self._born >= HEALTHY_SECONDS:
            self._failures = 0
        self._born = None
        self._end(kill=True)
        self._not_before = now + min(2.0**self._failures, LONGEST_DELAY_SECONDS)
        self._failures = min(self._failures + 1, 10)
        self._reason = reason

    def _end(self, *, kill: bool = False) -> None:
        """End the child and keep how it went; ``kill`` when asking nicely is of no use."""
        child, self._child = self._child, None
        if child is None:
            return
        if not child.end(kill=kill):
            self._undead.append(child)
        self._epitaph = child.epitaph(self.name)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time signals has no name
        return f"signal {number}"


class _Hung(Exception):  # noqa: N818
    """No answer in time."""


class _Gone(Exception):  # noqa: N818
    """The child ended, or speaks nonsense (then the message says so)."""


class _Child:
    """A running process with its three pipes."""

    def __init__(self, command: list[str], environment: dict[str, str], cwd: str) -> None:
        errors, errors_of_child = os.pipe()
        # The child must never wait for us to read its complaints: beyond the pipe's 64 KiB they are lost.
        os.set_blocking(errors_of_child, False)
        os.set_blocking(errors, False)
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors_of_child,
                bufsize=0,
                env=environment,
                cwd=cwd,
                start_new_session=True,  # Ctrl-C in a terminal is for the daemon alone
            )
        except OSError:
            os.close(errors)
            raise
        finally:
            os.close(errors_of_child)
        assert self.process.stdin is not None  # noqa: S101 - for mypy; asked for above
        assert self.process.stdout is not None  # noqa: S101
        self._requests, self._answers, self._errors = self.process.stdin, self.process.stdout, errors
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)
        self._complaint = ""

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
            # In slices, so that closing the daemon does not wait for a driver.
            if not self._poll.poll(min(left, 0.1) * 1000 + 1):
                continue
            chunk = os.read(self._answers.fileno(), 1 << 16)
            received += chunk
            if not chunk:
                raise _Gone
            if len(received) > LARGEST_ANSWER:
                raise _Gone(say("it answered more than {most_bytes}", most_bytes=LARGEST_ANSWER))
        try:
            return documents.parsed(received)
        except ValueError as error:
            raise _Gone(
                say("its answer is not a JSON object: {answer}", answer=repr(received[:80]))
            ) from error

    def end(self, *, kill: bool) -> bool:
        """End the process: its input ends, then SIGTERM, then SIGKILL. Tell whether it is gone."""
        self._requests.close()
        # A child that reads ends by itself; one whose pipe has just broken is ending already.
        steps = [(signal.SIGTERM, 0.2), (signal.SIGKILL, 1.0)]
        gone = self._wait(0.05 if kill else 0.5)
        for number, patience in steps:
            if gone:
                break
            self.process.send_signal(number)
            gone = self._wait(patience)
        self._complaint = self._last_words()
        self._answers.close()
        os.close(self._errors)
        return gone

    def reap(self) -> bool:
        """Take note of the process's end, if it has come."""
        return self.process.poll() is not None

    def epitaph(self, name: Said) -> Message:
        """Say how the process ended."""
        code = self.process.returncode
        if code is None:
            how = say("{probe} does not end", probe=name)
        elif code < 0:
            how = say("{probe} was killed by {signal}", probe=name, signal=_signal_name(-code))
        else:
            how = say("{probe} ended with status {status}", probe=name, status=code)
        return say("{end}: {complaint}", end=how, complaint=self._complaint) if self._complaint else how

    def _wait(self, seconds: float) -> bool:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _last_words(self) -> str:
        try:
            said = os.read(self._errors, 1 << 16).decode("utf-8", "replace").strip()
        except BlockingIOError:
            return ""
        return one_line(said.splitlines()[-1], 300) if said else ""
