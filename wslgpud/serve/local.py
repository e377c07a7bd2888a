"""The API for this machine's own commands, where the HTTP server asks for passwords or for TLS.

A Unix socket in the daemon's folder that only its user may open: the kernel checks who asks, so no password
has to lie about for ``wslgpud status``. It speaks as much HTTP as ``wslgpud.client`` needs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from wslgpud.serve.http import HEAD_BYTES, Problem, Request, Response, Route, problem

FILE = "status.sock"
#: what commands ask for; these handlers may run on a thread of their own
PATHS = ("/api/v1/status", "/api/v1/latest", "/api/v1/series", "/api/v1/range")
#: a client that does not write or read must not keep the next one waiting for ever
TIMEOUT_SECONDS = 5.0

log = logging.getLogger(__name__)


class LocalApi:
    """Answers on the socket from a thread of its own, one client after another."""

    def __init__(
        self, folder: Path, routes: Iterable[Route], timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        """Keep where the socket is to be and what answers there."""
        self.path = folder / FILE
        self._timeout = timeout_seconds
        self._routes = {route.path: route for route in routes if route.path in PATHS}
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
        threading.Thread(target=self._serve, args=(listener,), name="local-api", daemon=True).start()
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
            with client, contextlib.suppress(OSError):  # it left, or takes too long
                answer = self._answer(_head(client, time.monotonic() + self._timeout))
                client.settimeout(self._timeout)
                client.sendall(
                    b"HTTP/1.0 %d -\r\nContent-Length: %d\r\n\r\n" % (answer.status, len(answer.body))
                )
                client.sendall(answer.body)

    def _answer(self, head: bytes) -> Response:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path, _, query = rest.partition(" ")[0].partition("?")
        route = self._routes.get(path)
        if method != "GET" or route is None:
            return problem(404, f"here are only {', '.join(PATHS)}")
        try:
            return route.handler(Request(method, path, query, {}))
        except Problem as refused:
            return problem(refused.status, refused.detail)
        except Exception:
            log.exception("no answer for this machine's commands; please report this")
            return problem(500, "internal error; the daemon's log says more")


def _head(client: socket.socket, until: float) -> bytes:
    """Return the head of a request.

    Raises:
        OSError: it does not come in time, or has no end.
    """
    head = b""
    while b"\r\n\r\n" not in head:
        client.settimeout(max(0.001, until - time.monotonic()))
        part = client.recv(HEAD_BYTES)
        head += part
        if not part or len(head) > HEAD_BYTES:
            raise OSError("no request")
    return head
