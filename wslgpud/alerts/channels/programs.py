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
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from wslgpud.alerts.channels import DeliveryError
from wslgpud.host import unprotected
from wslgpud.security.redaction import parts, without
from wslgpud.security.run_as.accounts import program, replaceable
from wslgpud.security.run_as.rule import Account
from wslgpud.security.run_as.start import listen
from wslgpud.words import failure, say

#: for a killed process to be gone; one that hangs in the kernel is left to itself
_DEATH_SECONDS = 2.0


class Ended(NamedTuple):
    """How a program ended."""

    status: int | None
    """Its exit status, negative for a signal; None where it was stopped after its time."""
    said: str
    """The end of what it wrote to its standard error."""


class Setting(NamedTuple):
    """Where and as whom a program runs (``account`` for root only), with which variables; by default as we do."""

    cwd: str | None = None
    environment: Mapping[str, str] | None = None
    account: Account | None = None


#: as ours
OURS = Setting()


def run(
    command: Sequence[str], text: str, timeout_seconds: float, setting: Setting = OURS, *, guarded: bool = True
) -> None:
    """Run a program that gets a text to read, and see that it succeeded.

    After its time it and the children in its process group are killed. ``guarded`` runs it only where nobody but
    us and root can replace it.

    Raises:
        DeliveryError: it cannot be started, others could replace it, it fails, or takes longer than it may.
    """
    name = command[0]
    found = _found(name, setting.environment, guarded=guarded)
    status, said = ended([found, *command[1:]], text, timeout_seconds, setting)
    if status is None:
        late = say(
            "{program} did not end within {limit_seconds} and was stopped", program=name, limit_seconds=timeout_seconds
        )
        raise DeliveryError(late)
    if status:
        # It may quote its arguments, and a token among them.
        told = without(said, (part for word in command[1:] for part in parts(word)))
        if not told:
            raise DeliveryError(say("{probe} ended with status {status}", probe=name, status=status))
        raise DeliveryError(say("{program} failed ({status}): {told}", program=name, status=status, told=told))


def ended(command: Sequence[str], text: str, timeout_seconds: float, setting: Setting = OURS) -> Ended:
    """Run a program, given by its path, and return how it ended; the arguments are those of ``run``.

    Children of the program that outlive it are not waited for, whatever they hold open.

    Raises:
        DeliveryError: it cannot be started.
    """
    account = setting.account
    try:
        with _readable(text.encode()) as stdin:
            process = subprocess.Popen(
                unprotected(command),
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                cwd=setting.cwd,
                env=setting.environment,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=account.groups if account else None,
            )
    except OSError as error:
        raise DeliveryError(say("cannot start {program}: {why}", program=command[0], why=failure(error))) from error
    with cast("IO[bytes]", process.stderr) as stderr:
        in_time, (said,) = listen(process.pid, [stderr.fileno()], time.monotonic() + timeout_seconds)
        if not in_time:
            # The whole group. It may have become another user's (sudo) and beyond our reach.
            with contextlib.suppress(PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_DEATH_SECONDS)
    return Ended(process.returncode if in_time else None, said.decode("utf-8", "replace").strip()[-200:])


def _readable(data: bytes) -> IO[bytes]:
    """Return a file in memory that holds the data: unlike into a pipe, nobody waits for its reader."""
    file = os.fdopen(os.memfd_create("message"), "w+b")
    file.write(data)
    file.seek(0)
    return file


def _found(name: str, environment: Mapping[str, str] | None, *, guarded: bool) -> str:
    path = (os.environ if environment is None else environment).get("PATH")
    place = program(name, path) or shutil.which(name, path=path)
    if place is None:
        # Not for good: its drive may be away for a while, as that of Windows after sleep.
        number = errno.EACCES if Path(name).is_file() else errno.ENOENT
        why = failure(OSError(number, os.strerror(number)))
        raise DeliveryError(say("cannot start {program}: {why}", program=name, why=why))
    if guarded and (problem := replaceable(Path(place))):
        raise DeliveryError(
            say("{program} is not started, for others could replace it: {problem}", program=name, problem=problem)
        )
    return place


class CommandChannel:
    """Runs a program of the user's with the warning as JSON on its standard input."""

    name = "command"
    human = False

    def __init__(self, command: Sequence[str], timeout_seconds: float) -> None:
        self._command, self._timeout = list(command), timeout_seconds

    def send(self, message: Mapping[str, Any]) -> None:
        """Run the program as it stands, without a shell; raises what ``run`` does."""
        run(self._command, json.dumps(message), self._timeout)
