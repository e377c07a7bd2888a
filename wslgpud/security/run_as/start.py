"""Starts a program as the account that ``accounts.py`` names, with bounded time and output."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from wslgpud.security.run_as.rule import Account

#: how much of what a program says is kept, and read at once; how long a killed one may take to go
_MOST_BYTES, _KILL_SECONDS = 1 << 16, 3.0
#: prctl(2)
_PR_SET_NO_NEW_PRIVS = 38
#: memfd_create(2): neither its content nor these can be changed any more
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


@dataclass(frozen=True)
class Command:
    """A program with its arguments, its whole environment, its account and its working folder (None: our own)."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    account: Account | None = None
    folder: str | None = "/"


def start(
    command: Command, *, stdin: int, stdout: int, stderr: int, script: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own; with an account as that account, without any way back to root.

    ``script`` is a file of ours that the program is to run: its first argument, and handed over open, because the
    account may be unable to read the folder it lies in. Its name follows, for people to see. The others are Popen's.

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
                arguments,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=handed,
                env=dict(command.environment),
                cwd=command.folder,
                start_new_session=True,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=account.groups if account else None,
            )

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
        streams = [stack.enter_context(stream).fileno() for stream in (process.stdout, process.stderr) if stream]
        try:
            in_time, said = listen(process.pid, streams, time.monotonic() + seconds)
        finally:
            # Not reaped yet: its number is nobody else's.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in a driver: nothing can end it
                process.wait(_KILL_SECONDS)
    if not in_time:
        raise TimeoutError(f"{command.arguments[0]} did not end within {seconds:.0f} s")
    output, complaints = (part.decode("utf-8", "replace") for part in said)
    return process.returncode, output, complaints


def listen(pid: int, streams: Iterable[int], until_mono: float) -> tuple[bool, list[bytes]]:
    """Read pipes until a process has ended; return whether it did so in time, and the end of what came by each.

    Its end shows on a pidfd and not as the end of its pipes, which a child of its own may keep open.
    """
    said, end, poll = dict.fromkeys(streams, b""), os.pidfd_open(pid), select.poll()
    try:
        for descriptor in (end, *said):
            poll.register(descriptor, select.POLLIN)
        while (left := until_mono - time.monotonic()) > 0:
            ready = {descriptor for descriptor, _ in poll.poll(1000 * left + 1)}
            for stream in ready & said.keys():
                data = os.read(stream, _MOST_BYTES)  # as much as a pipe holds
                said[stream] = (said[stream] + data)[-_MOST_BYTES:]
                if not data:
                    poll.unregister(stream)
            if end in ready:
                return True, list(said.values())
        return False, list(said.values())
    finally:
        os.close(end)


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


def _without_new_privileges(begin: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Start a program for which setuid bits have no meaning (prctl(2), PR_SET_NO_NEW_PRIVS).

    That is set for a thread and what it starts, and never taken back: so in a thread that ends at once.
    """
    import ctypes  # the daemon, which never gets here, shall not carry it

    def run() -> subprocess.Popen[bytes]:
        # It fails on kernels before 3.5 only, where it is no loss: who gains by it has no rights anyway.
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return begin()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()
