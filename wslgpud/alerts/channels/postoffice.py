"""The daemon's side of ``postman``: one process that has Apprise loaded, while there is something to send.

Or about to be: it stands by from the first sign that memory may run out (level info), because starting it
takes a second, and far longer once memory is short.

It forks for each message, so that many at once share what Apprise takes (46 MB; ten that hang take 120 MB
together) and none waits for another.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import count
from queue import Empty, SimpleQueue
from typing import IO, Any

from wslgpud.alerts.channels import DeliveryError, postman
from wslgpud.host import unprotected
from wslgpud.probes.supervisor import clean_environment, python_command
from wslgpud.words import failure, say

#: how a network is reached is a matter of the machine; the rest of our environment is none of the child's
_PASSED = frozenset(
    {
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
        "requests_ca_bundle",
        "ssl_cert_file",
        "ssl_cert_dir",
    }
)
#: a process that stands by and has died is started anew no sooner than this
_RESTART_SECONDS = 30.0
#: of letters that wait for a process that has just started; one has 20 kB at most
_PIPE_BYTES = 1 << 20


class PostOffice:
    """Hands letters over and waits for what became of them; from any thread."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        """Start nothing yet; ``command`` is another postman."""
        self._command = list(command or python_command(postman.__name__))
        self._lock = threading.Lock()
        self._round: _Round | None = None
        self._begun_mono = float("-inf")

    def stand_by(self, *, needed: bool) -> None:
        """Have the process ready before there is a letter, or no longer.

        To start Python and load Apprise takes a second, and much longer once memory is short.
        """
        with self._lock:
            here = self._round
            if here is not None and not here.over:
                here.stand_by(needed=needed)
            elif needed and time.monotonic() - self._begun_mono >= _RESTART_SECONDS:
                self._begun_mono = time.monotonic()
                with contextlib.suppress(DeliveryError):  # the next letter says so
                    self._round = _Round(self._command, self._lock)
                    self._round.stand_by(needed=needed)

    def ask(self, letter: Mapping[str, Any], timeout_seconds: float) -> int | None:
        """Return the status of a letter (see ``postman``); None where it took too long.

        Raises:
            DeliveryError: the process cannot be started, or has died.
        """
        answer: SimpleQueue[int | None] = SimpleQueue()
        with self._lock:
            if self._round is None or self._round.over:
                self._round = _Round(self._command, self._lock)
            here = self._round
            number = here.post({**letter, "seconds": timeout_seconds}, answer)
        try:
            status = answer.get(timeout=timeout_seconds)
        except Empty:
            return None
        finally:
            with self._lock:
                here.forget(number)
        if status is None:
            raise DeliveryError(say("the process that sends has died"))
        return status


class _Round:
    """One process, from the first letter until none is waiting; all but the reader hold the lock."""

    def __init__(self, command: Sequence[str], lock: threading.Lock) -> None:
        kept = {name: value for name, value in os.environ.items() if name.lower() in _PASSED}
        try:
            self._process = subprocess.Popen(
                unprotected(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd="/",
                env={**clean_environment(), **kept},
                start_new_session=True,
            )
        except OSError as error:
            raise DeliveryError(
                say("cannot start {program}: {why}", program=command[0], why=failure(error))
            ) from error
        self.over = self._kept = False
        self._lock = lock
        self._numbers = count()
        self._waiting: dict[int, SimpleQueue[int | None]] = {}
        letters, statuses = self._process.stdin, self._process.stdout
        assert letters is not None  # noqa: S101 - for mypy; asked for above
        assert statuses is not None  # noqa: S101
        self._letters = letters
        with contextlib.suppress(OSError):  # beyond what a user may have; the usual 64 KiB must do then
            fcntl.fcntl(letters, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.set_blocking(letters.fileno(), False)
        threading.Thread(target=self._read, args=(statuses,), name="alerts-post", daemon=True).start()

    def post(self, letter: Mapping[str, Any], answer: SimpleQueue[int | None]) -> int:
        number = next(self._numbers)
        self._waiting[number] = answer
        line = json.dumps({**letter, "number": number}).encode() + b"\n"
        try:
            whole = self._letters.write(line) == len(line)
        except OSError:
            whole = False
        if not whole:  # it does not read, or has died
            self._process.kill()
        return number

    def stand_by(self, *, needed: bool) -> None:
        self._kept = needed
        self._end_if_idle()

    def forget(self, number: int) -> None:
        """Take note that nobody waits for a letter any more."""
        self._waiting.pop(number, None)
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if not self._waiting and not self._kept:
            self.over = True
            self._letters.close()

    def _read(self, statuses: IO[bytes]) -> None:
        with statuses:
            # Lines of a few bytes, which a pipe takes as a whole, whoever of the forked ones writes.
            for line in iter(lambda: statuses.readline(64), b""):
                number, _, status = line.partition(b" ")
                if (answer := self._waiting.get(int(number))) is not None:
                    answer.put(int(status))
        self._process.wait()
        with self._lock:
            self.over = True
            self._letters.close()
            for answer in self._waiting.values():
                answer.put(None)


#: one for all channels
OFFICE = PostOffice()
