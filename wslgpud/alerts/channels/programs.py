"""Running a program for a channel: bounded in time and in what is kept of its words, without a shell."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from wslgpud.alerts.channels import DeliveryError
from wslgpud.foreign.programs import program, replaceable
from wslgpud.foreign.rule import Account
from wslgpud.host import unprotected
from wslgpud.masking import parts, without
from wslgpud.words import Said, failure, say

#: of what a program says, its end is kept
_KEPT_BYTES = 4096
#: for a killed process to be gone; one that hangs in the kernel is left to itself
_DEATH_SECONDS = 2.0


class Ended(NamedTuple):
    """How a program ended."""

    status: int | None
    """Its exit status, negative for a signal; None where it was stopped after its time."""
    said: str
    """The end of what it wrote to its standard error."""


class Setting(NamedTuple):
    """Where and as whom a program runs; by default as we do."""

    cwd: str | None = None
    environment: Mapping[str, str] | None = None
    """All of its variables."""
    account: Account | None = None
    """As whom it runs, instead of us; for root only."""


#: as ours
OURS = Setting()


def run(
    command: Sequence[str],
    text: str,
    timeout_seconds: float,
    setting: Setting = OURS,
    *,
    guarded: bool = True,
) -> None:
    """Run a program to its end, and see that it succeeded.

    Args:
        command: program and arguments, as they stand.
        text: what it gets to read.
        timeout_seconds: when it and the children in its process group are killed.
        setting: where and as whom it runs.
        guarded: run it only where nobody but us and root can replace it.

    Raises:
        DeliveryError: it cannot be started, others could replace it, it fails, or takes longer than it may.
    """
    name = command[0]
    found = _found(name, setting.environment, guarded=guarded)
    how = ended([found, *command[1:]], text, timeout_seconds, setting)
    if how.status is None:
        raise DeliveryError(
            say(
                "{program} did not end within {limit_seconds} and was stopped",
                program=name, limit_seconds=timeout_seconds,
            )
        )  # fmt: skip
    if how.status:
        # It may quote its arguments, and a token among them.
        told = without(how.said, (part for word in command[1:] for part in parts(word)))
        if not told:
            raise DeliveryError(say("{probe} ended with status {status}", probe=name, status=how.status))
        raise DeliveryError(
            say("{program} failed ({status}): {told}", program=name, status=how.status, told=told)
        )


def ended(command: Sequence[str], text: str, timeout_seconds: float, setting: Setting = OURS) -> Ended:
    """Run a program, given by its path, and return how it ended; the arguments are those of ``run``.

    Children of the program that outlive it are not waited for, whatever they hold open.

    Raises:
        DeliveryError: it cannot be started.
    """
    try:
        process = subprocess.Popen(
            unprotected(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            cwd=setting.cwd,
            env=setting.environment,
            user=setting.account.uid if setting.account else None,
            group=setting.account.gid if setting.account else None,
            extra_groups=setting.account.groups if setting.account else None,
        )
    except OSError as error:
        raise DeliveryError(
            say("cannot start {program}: {why}", program=command[0], why=failure(error))
        ) from error
    said = _Words()
    try:
        in_time = _converse(process, text.encode(), said, time.monotonic() + timeout_seconds)
        if not in_time:
            # The whole group. It may have become another user's (sudo) and beyond our reach.
            with contextlib.suppress(PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_DEATH_SECONDS)
    finally:
        for pipe in (process.stdin, process.stderr):
            if pipe is not None:
                pipe.close()
    return Ended(process.returncode if in_time else None, said.last)


def _found(name: str, environment: Mapping[str, str] | None, *, guarded: bool) -> str:
    path = (os.environ if environment is None else environment).get("PATH")
    place = program(name, path) or shutil.which(name, path=path)
    if place is None:
        # Not for good: its drive may be away for a while, as that of Windows after sleep.
        raise DeliveryError(say("cannot start {program}: {why}", program=name, why=_why_not(name)))
    if guarded and (problem := replaceable(Path(place))):
        raise DeliveryError(
            say(
                "{program} is not started, for others could replace it: {problem}",
                program=name,
                problem=problem,
            )
        )
    return place


class _Words:
    """The end of what a program says."""

    def __init__(self) -> None:
        self._kept = b""

    def take(self, pipe: IO[bytes]) -> bool:
        """Read what there is, at most a pipe's fill; tell whether more may come."""
        data = os.read(pipe.fileno(), 1 << 16)
        self._kept = (self._kept + data)[-_KEPT_BYTES:]
        return bool(data)

    @property
    def last(self) -> str:
        return self._kept.decode("utf-8", "replace").strip()[-200:]


def _converse(process: subprocess.Popen[bytes], data: bytes, said: _Words, until_mono: float) -> bool:
    """Write and read until the process has ended; tell whether it did so in time.

    Its end shows on a pidfd and not as the end of its pipes, which a child of its own may keep open.
    """
    assert process.stdin is not None  # noqa: S101 - for mypy; asked for above
    assert process.stderr is not None  # noqa: S101
    os.set_blocking(process.stdin.fileno(), False)
    os.set_blocking(process.stderr.fileno(), False)
    end = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(end, select.POLLIN)
        poll.register(process.stderr, select.POLLIN)
        poll.register(process.stdin, select.POLLOUT)
        while (left := until_mono - time.monotonic()) > 0:
            ready = {descriptor for descriptor, _ in poll.poll(1000 * left + 1)}
            if process.stderr.fileno() in ready and not said.take(process.stderr):
                poll.unregister(process.stderr)
            if end in ready:
                return True
            if not process.stdin.closed and process.stdin.fileno() in ready:
                data = _written(process.stdin, data)
                if not data:
                    poll.unregister(process.stdin)
                    process.stdin.close()
        return False
    finally:
        os.close(end)


def _written(pipe: IO[bytes], data: bytes) -> bytes:
    """Return what is still to be written; nothing where nobody reads any more."""
    try:
        return data[os.write(pipe.fileno(), data) :]
    except BlockingIOError:
        return data
    except OSError:
        return b""


def _why_not(name: str) -> Said:
    number = errno.EACCES if Path(name).is_file() else errno.ENOENT
    return failure(OSError(number, os.strerror(number)))
