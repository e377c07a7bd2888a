"""Starts a program as the account that ``accounts.py`` names, and hears it out within bounds."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wslgpud.foreign.rule import Account

#: how much of what a program says is kept, and read at once
_MOST_BYTES = 1 << 16
#: how often a program is looked at that answers with its end, and how many reads come at once, and
#: how long a killed one may take to go
_LOOK_SECONDS, _MOST_READS, _KILL_SECONDS = 0.05, 64, 3.0
#: prctl(2)
_PR_SET_NO_NEW_PRIVS = 38
#: memfd_create(2): neither its content nor these can be changed any more
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


@dataclass(frozen=True)
class Command:
    """A program with its arguments, its whole environment, and as whom it runs (None: as ourselves)."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    account: Account | None = None


def start(
    command: Command,
    *,
    stdin: int,
    stdout: int,
    stderr: int,
    script: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own; with an account as that account, without any way back to root.

    Args:
        command: what to start, and as whom.
        stdin: as for Popen.
        stdout: as for Popen.
        stderr: as for Popen.
        script: file of ours that the program is to run: its first argument, and handed over open, because the
            account may be unable to read the folder it lies in. Its name follows, for people to see.

    Raises:
        OSError: it cannot be started, or the script not be read.
    """
    account = command.account
    with contextlib.ExitStack() as stack:
        arguments, handed = list(command.arguments), []
        if script is not None:
            handed = [stack.enter_context(_open_copy(script))]
            arguments[1:1] = [f"/dev/fd/{handed[0]}", str(script)]
        if account is not None:
            # Popen returns once the shell runs. A user's lease or file system can keep execve(2) waiting, and
            # only what has been started can be ended.
            arguments[:0] = ["/bin/sh", "-c", 'exec "$0" "$@"']

        def begin() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                # In a session of its own it has no terminal, into which it could type.
                arguments, stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=handed,
                env=dict(command.environment), cwd="/", start_new_session=True,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=account.groups if account else None,
            )  # fmt: skip

        return _without_new_privileges(begin) if account else begin()


def run(command: Command, script: Path, seconds: float) -> tuple[int, str, str]:
    """Run a script of ours to its end; return exit status, output and complaints, of much only the end.

    Whatever it has started ends with it, and is not waited for.

    Raises:
        OSError: it cannot be started.
        TimeoutError: it did not end within ``seconds``, and was killed.
    """
    pipe = subprocess.PIPE
    process = start(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, script=script)
    with contextlib.ExitStack() as stack:
        assert process.stdout is not None  # noqa: S101 - for mypy; asked for above
        assert process.stderr is not None  # noqa: S101
        streams = [stack.enter_context(stream).fileno() for stream in (process.stdout, process.stderr)]
        said = dict.fromkeys(streams, b"")
        poll, end, ended = select.poll(), time.monotonic() + seconds, False
        for stream in streams:
            poll.register(stream, select.POLLIN)
        try:
            while not ended:
                if time.monotonic() > end:
                    raise TimeoutError(f"{command.arguments[0]} did not end within {seconds:.0f} s")
                # Not reaped yet: until its group is killed, its number must be nobody else's.
                flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
                ended = os.waitid(os.P_PID, process.pid, flags) is not None
                _drain(poll, said, 0 if ended else _LOOK_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in a driver: nothing can end it
                process.wait(_KILL_SECONDS)
    output, complaints = (said[stream].decode("utf-8", "replace") for stream in streams)
    return process.returncode, output, complaints


def _drain(poll: select.poll, said: dict[int, bytes], seconds: float) -> None:
    """Take what is there, after waiting for some at most so long; keep the end of it."""
    for _ in range(_MOST_READS):
        ready = poll.poll(seconds * 1000)
        for stream, _ in ready:
            data = os.read(stream, _MOST_BYTES)
            said[stream] = (said[stream] + data)[-_MOST_BYTES:]
            if not data:
                poll.unregister(stream)
        if not ready:
            return
        seconds = 0


@contextlib.contextmanager
def _open_copy(script: Path) -> Iterator[int]:
    """Yield a descriptor of a sealed copy in memory, which every account may open by its number.

    A file would be root's, and the descriptor lets whoever gets it write: with a link to it anywhere, they
    would have made a file of root's with their own words in it.
    """
    with os.fdopen(os.memfd_create(script.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "wb") as copy:
        copy.write(script.read_bytes())
        copy.flush()
        os.fchmod(copy.fileno(), 0o444)
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
        yield copy.fileno()


def _without_new_privileges(
    begin: Callable[[], subprocess.Popen[bytes]],
) -> subprocess.Popen[bytes]:
    """Start a program for which setuid bits have no meaning (prctl(2), PR_SET_NO_NEW_PRIVS).

    That is set for a thread and what it starts, and never taken back: so in a thread that ends at once.
    """
    import ctypes  # noqa: PLC0415 - the daemon, which never gets here, shall not carry it

    done: list[subprocess.Popen[bytes]] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            # It fails on kernels before 3.5 only, where it is no loss: who gains by it has no rights anyway.
            ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            done.append(begin())
        except BaseException as error:  # noqa: BLE001 - raised again below, where somebody catches it
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]
