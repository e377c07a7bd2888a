"""Running a program for a channel: bounded in time and in what is kept of its words, without a shell."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, cast

from wslgpud.alerts.channels import Channel, DeliveryError
from wslgpud.host import unprotected
from wslgpud.security.redaction import parts, without
from wslgpud.security.run_as import Command, listen, program, replaceable, start
from wslgpud.words import cause, say

#: for a killed process to be gone; one that hangs in the kernel is left to itself
_DEATH_SECONDS = 2.0


def run(command: Command, text: str, timeout_seconds: float, *, guarded: bool = True) -> None:
    """Run a program that gets a text to read, and see that it succeeded.

    After its time it and the children in its process group are killed; children that outlive the program are not
    waited for, whatever they hold open. ``guarded`` runs it only where nobody but us and root can replace it.

    Raises:
        DeliveryError: it cannot be started, others could replace it, it fails, or takes longer than it may.
    """
    name, *arguments = command.arguments
    found = _found(name, command.environment.get("PATH"), guarded=guarded)
    try:
        # A file in memory: unlike with a pipe, nobody waits for its reader.
        with os.fdopen(os.memfd_create("message"), "w+b") as stdin:
            stdin.write(text.encode())
            stdin.seek(0)
            child = replace(command, arguments=unprotected([found, *arguments]))
            null, pipe = subprocess.DEVNULL, subprocess.PIPE
            process = start(child, stdin=stdin.fileno(), stdout=null, stderr=pipe)
    except OSError as error:
        raise DeliveryError(say("cannot start {program}: {why}", program=found, why=cause(error))) from error
    with cast("IO[bytes]", process.stderr) as stderr:
        in_time, (said,) = listen(process.pid, [stderr.fileno()], time.monotonic() + timeout_seconds)
        if not in_time:
            # The whole group. It may have become another user's (sudo) and beyond our reach.
            with contextlib.suppress(PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_DEATH_SECONDS)
    if not in_time:
        late = say(
            "{program} did not end within {limit_seconds} and was stopped", program=name, limit_seconds=timeout_seconds
        )
        raise DeliveryError(late)
    if status := process.returncode:
        # It may quote its arguments, and a token among them.
        secrets = (part for word in arguments for part in parts(word))
        told = without(said.decode("utf-8", "replace").strip()[-200:], secrets)
        if not told:
            raise DeliveryError(say("{probe} ended with status {status}", probe=name, status=status))
        raise DeliveryError(say("{program} failed ({status}): {told}", program=name, status=status, told=told))


def _found(name: str, path: str | None, *, guarded: bool) -> str:
    place = program(name, path) or shutil.which(name, path=path)
    if place is None:
        # Not for good: its drive may be away for a while, as that of Windows after sleep.
        number = errno.EACCES if Path(name).is_file() else errno.ENOENT
        why = cause(OSError(number, os.strerror(number)))
        raise DeliveryError(say("cannot start {program}: {why}", program=name, why=why))
    if guarded and (problem := replaceable(Path(place))):
        raise DeliveryError(
            say("{program} is not started, for others could replace it: {problem}", program=name, problem=problem)
        )
    return place


class CommandChannel(Channel):
    """Runs a program of the user's with the warning as JSON on its standard input."""

    name = "command"
    human = False

    def __init__(self, command: Sequence[str], timeout_seconds: float) -> None:
        self._command, self._timeout = command, timeout_seconds

    def send(self, message: Mapping[str, Any]) -> None:
        """Run the program as it stands, without a shell; raises what ``run`` does."""
        run(Command(self._command, os.environ, folder=None), json.dumps(message), self._timeout)
