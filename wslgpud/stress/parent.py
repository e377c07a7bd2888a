"""Runs and supervises the worker: whatever it does or fails to do, the daemon does not block."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wslgpud.probes.supervisor import describe_exit
from wslgpud.security import safe_files, shapes
from wslgpud.security.run_as import Command, start
from wslgpud.stress.result import WorkerOutput
from wslgpud.words import MessageLike, cause, say

WORKER = Path(__file__).with_name("worker")
#: A heartbeat comes at every group of chunks, also on memory behind PCIe; only a hang is silent for this long.
STALL_SECONDS = 15.0
#: Time limit of each way to end it. The first is a request: the worker frees memory and exits, well within a second. A
#: signal comes last, because under WSL2 one in a CUDA program has broken the driver's channel for the whole VM
#: (microsoft/WSL#41062).
OWN_SECONDS, TERM_SECONDS, KILL_SECONDS = 5.0, 3.0, 3.0
#: Until it has loaded torch, a worker does not listen, and holds nothing that others could want.
START_SECONDS = 30.0
WATCH_SECONDS = 0.1
#: Limits on a worker's output, in bytes: of a line, of the lines that are kept (four times that of the largest card
#: with errors everywhere), and in total (heartbeats for hours).
MAX_LINE, MAX_KEPT_BYTES, MAX_BYTES = 1 << 18, 2 << 20, 16 << 20
#: Heartbeats come twenty times per second; more are not passed on.
BEAT_SECONDS = 0.04

Line = dict[str, Any]


def supervise(  # noqa: PLR0913 - what to run and its limits
    command: Command,
    job: Callable[[], Mapping[str, Any]],
    *,
    deadline_seconds: float,
    script: Path | None = None,
    watch: Callable[[], MessageLike] = lambda: "",
    started: Callable[[int], None] = lambda _: None,
    progress: Callable[[Line], None] = lambda _: None,
    stall_seconds: float = STALL_SECONDS,
) -> WorkerOutput:
    """Run the worker to its end; ``script`` is its program where the command does not name it.

    ``job`` returns its ``worker.WorkerJob``, and may block: meanwhile the worker loads torch, which takes seconds,
    without touching a GPU. An exception from it ends the worker and propagates. ``started`` gets the worker's pid right
    before its job, ``progress`` every line as it comes. ``watch`` is called ten times per second: a text is a reason to
    leave the GPU now. ``stall_seconds`` is the longest time without a line, after the first one.
    """
    outcome, pipe = WorkerOutput(), subprocess.PIPE
    try:
        process = start(command, stdin=pipe, stdout=pipe, stderr=pipe, script=script)
    except OSError as error:
        program, why = command.arguments[0], cause(error)
        outcome.failure = say("cannot start {program}: {why}", program=program, why=why)
        return outcome
    conversation = _Conversation(process, outcome, progress)
    reason: MessageLike = ""
    try:
        text = json.dumps(dict(job()))
        began = conversation.last_line_mono = time.monotonic()
        started(process.pid)
        conversation.tell(text)
        while not reason and conversation.listen(WATCH_SECONDS):
            now = time.monotonic()
            # The first line comes once torch is loaded, at worst from a cold disk or a Windows drive.
            patience = stall_seconds if outcome.lines else max(stall_seconds, START_SECONDS)
            if now - began > deadline_seconds:
                outcome.failure = say("not done within {limit_seconds}", limit_seconds=deadline_seconds)
            elif now - conversation.last_line_mono > patience:
                outcome.failure = say("the worker has been silent for {silent_seconds}", silent_seconds=patience)
            reason = outcome.failure or watch()
    finally:
        conversation.part(reason)
        _end(process, outcome)
        conversation.close()
    outcome.seconds = time.monotonic() - began
    if not outcome.failure:
        if outcome.lines and outcome.lines[-1]["event"] == "end":
            outcome.left = reason
        else:
            outcome.failure = describe_exit(say("the worker"), process.returncode, conversation.last_words())
    return outcome


class _Conversation:
    def __init__(
        self, process: subprocess.Popen[bytes], outcome: WorkerOutput, progress: Callable[[Line], None]
    ) -> None:
        assert process.stdin and process.stdout and process.stderr  # noqa: S101, PT018 - for mypy; asked for above
        self._process, self._outcome, self._progress = process, outcome, progress
        self._pipes = process.stdin, process.stdout, process.stderr
        self.last_line_mono = time.monotonic()
        self._rest = self._complaints = b""
        self._deaf = False
        self._bytes = self._kept_bytes = 0
        self._beat = float("-inf")
        self._out = process.stdout.fileno()
        self._streams = {self._out, process.stderr.fileno()}
        self._poll = select.poll()
        for stream in self._streams:
            self._poll.register(stream, select.POLLIN | select.POLLHUP)

    def tell(self, text: str) -> None:
        with contextlib.suppress(OSError):  # it has ended; its last output tells why
            self._pipes[0].write(text.encode() + b"\n")
            self._pipes[0].flush()

    def listen(self, seconds: float) -> bool:
        """Take output for ``seconds``; False when no more can come from the worker itself.

        What it has left behind may hold its pipes for as long as it likes.
        """
        over = self._process.poll() is not None  # then all that it wrote is in the pipes already
        ready = self._poll.poll(seconds * 1000)
        for stream, _ in ready:
            data = os.read(stream, 1 << 16)
            if not data:
                self._poll.unregister(stream)
                self._streams.discard(stream)
            elif stream == self._out:
                self._take(data)
            else:
                self._complaints = (self._complaints + data)[-4096:]
        return self._out in self._streams and (bool(ready) or not over)

    def _take(self, data: bytes) -> None:
        """Take the worker's lines, up to the first that no worker of ours would send."""
        if self._deaf:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._bytes += len(data)
        for text in lines:
            try:
                line = safe_files.parsed(text)
                shapes.check_line(line)
            except ValueError:
                odd = text[:80].decode("utf-8", "replace")
                self._distrust(say("the worker wrote a line outside its protocol: {line}", line=odd))
                return
            self.last_line_mono = time.monotonic()
            if line["event"] == "beat":
                if self.last_line_mono - self._beat < BEAT_SECONDS:
                    continue
                self._beat = self.last_line_mono
            else:
                self._kept_bytes += len(text)
                self._outcome.lines.append(line)
            self._progress(line)
        if (
            max(map(len, (self._rest, *lines))) > MAX_LINE
            or self._kept_bytes > MAX_KEPT_BYTES
            or self._bytes > MAX_BYTES
        ):
            self._distrust(say("the worker wrote far too much"))

    def _distrust(self, failure: MessageLike) -> None:
        """Stop listening; any further output is ignored."""
        self._outcome.failure, self._deaf, self._rest = failure, True, b""

    def part(self, reason: MessageLike) -> None:
        """Ask the worker to end, and take its remaining output."""
        if reason:
            self.tell("stop")
        with contextlib.suppress(OSError):
            self._pipes[0].close()
        loading = not self._outcome.lines and not self._outcome.failure
        end = time.monotonic() + (START_SECONDS if loading else OWN_SECONDS)
        while self._streams and time.monotonic() < end:
            if not self.listen(0.05) and self._process.poll() is not None:
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, end - time.monotonic()))

    def last_words(self) -> str:
        words = self._complaints.decode("utf-8", "replace").strip().splitlines()
        return words[-1] if words else ""

    def close(self) -> None:
        for stream in self._pipes:
            with contextlib.suppress(OSError):
                stream.close()


def _end(process: subprocess.Popen[bytes], outcome: WorkerOutput) -> None:
    """End the process, with increasing force; record if that is impossible."""
    for number, patience in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        if process.poll() is None:
            outcome.failure = outcome.failure or say("the worker did not end by itself")
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)
    outcome.hung_pid = process.pid if process.poll() is None else None
