"""The API for this machine's own commands, where the HTTP server asks for passwords or for TLS.

A Unix socket in the daemon's folder that only its user may open: the kernel checks who asks, so no password
has to lie about for ``wslgpud status``.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable
from pathlib import Path

from wslgpud.serve.connection import Deadlines
from wslgpud.serve.hosts import HostRule
from wslgpud.serve.http import App, Route
from wslgpud.serve.listener import Listener, Serving
from wslgpud.serve.webconfig import WebConfigFile

FILE = "status.sock"
#: what commands ask for
PATHS = ("/api/v1/status", "/api/v1/latest", "/api/v1/series", "/api/v1/range")
#: a client that does not write or read is let go
TIMEOUT_SECONDS = 5.0
STOP_SECONDS = 1.0

log = logging.getLogger(__name__)


class LocalApi:
    """Answers on the socket, as the server does on its port, but without asking who it is."""

    def __init__(self, folder: Path, routes: Iterable[Route], timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.path = folder / FILE
        self._deadlines = Deadlines(timeout_seconds, max(1, round(timeout_seconds)), timeout_seconds)
        self._open = WebConfigFile("")
        self._app = App([r for r in routes if r.path in PATHS], HostRule("localhost", "", ()), self._open)
        self._serving: Serving | None = None

    def start(self) -> bool:
        """Listen; False where the folder allows no socket (a path too long, a file system without them)."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.path.unlink(missing_ok=True)  # of a daemon that was killed
            os.fchmod(sock.fileno(), 0o600)  # bound with it: by its path it could be another file by then
            sock.bind(str(self.path))
            self._serving = Serving(Listener(sock, self._app, self._open, self._deadlines), "wslgpud-local")
        except OSError as error:
            sock.close()
            log.warning("'wslgpud status' cannot ask this daemon: no socket %s: %s", self.path, error)
            return False
        return True

    def close(self) -> None:
        """Stop listening and take the socket away."""
        if self._serving is not None:
            self._serving.stop(STOP_SECONDS)
            self._serving = None
            self.path.unlink(missing_ok=True)
        self._app.close()
