"""The state of things for this machine's own commands, where the HTTP server asks for passwords or for TLS.

A Unix socket in the daemon's folder that only its user may open: who connects and sends a line with a
language gets one JSON document. The kernel checks who asks, so no password has to lie about for
``wslgpud status``.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wslgpud import documents
from wslgpud.words import ENGLISH, LANGUAGES

FILE = "status.sock"
#: of an answer; the largest so far has a hundredth of it
ANSWER_BYTES = 16 << 20
#: a client that does not read must not keep the next one waiting for ever
TIMEOUT_SECONDS = 5.0

log = logging.getLogger(__name__)


class LocalStatus:
    """Answers on the socket from a thread of its own."""

    def __init__(
        self,
        folder: Path,
        status: Callable[[str], Mapping[str, Any]],
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Keep where the socket is to be and what is said there."""
        self.path = folder / FILE
        self._timeout = timeout_seconds
        self._status = status
        self._socket: socket.socket | None = None

    def start(self) -> bool:
        """Listen; False where the folder allows no socket (a path too long, a file system without them)."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.path.unlink(missing_ok=True)  # of a daemon that was killed
            os.fchmod(listener.fileno(), 0o600)  # bound with it: by its path it could be another file by then
            listener.bind(str(self.path))
            listener.listen(8)
        except OSError as error:
            listener.close()
            log.warning("'wslgpud status' cannot ask this daemon: no socket %s: %s", self.path, error)
            return False
        self._socket = listener
        threading.Thread(target=self._serve, args=(listener,), name="local-status", daemon=True).start()
        return True

    def close(self) -> None:
        """Stop listening and take the socket away."""
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread; a mere close would not
            self._socket.close()
            self._socket = None
            self.path.unlink(missing_ok=True)

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # closed
            with client:
                client.settimeout(self._timeout)
                try:
                    client.sendall(json.dumps(self._status(_language(client))).encode())
                except OSError as error:
                    log.debug("nobody took the status: %s", error)
                except Exception:
                    log.exception("no status for this machine's commands; please report this")


def _language(client: socket.socket) -> str:
    """Return the language that a client asks for; English for what is none."""
    asked = client.recv(8).decode(errors="replace").strip()
    return asked if asked in LANGUAGES else ENGLISH.code


def ask(path: Path, language: str = ENGLISH.code) -> dict[str, Any]:
    """Return what the daemon behind the socket says in a language, all of it within ``TIMEOUT_SECONDS``.

    Raises:
        OSError: nobody answers there in time, or we may not ask.
        ValueError: the answer is cut short, or without end.
    """
    end, answer = time.monotonic() + TIMEOUT_SECONDS, bytearray()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as daemon:
        daemon.settimeout(TIMEOUT_SECONDS)
        daemon.connect(str(path))
        daemon.sendall(f"{language}\n".encode())
        while len(answer) < ANSWER_BYTES and (part := daemon.recv(1 << 16)):
            answer += part
            daemon.settimeout(max(0.001, end - time.monotonic()))
    return documents.parsed(bytes(answer))
