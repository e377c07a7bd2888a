"""The HTTP server on its port, and on a Unix socket for local commands."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from wslgpud import config
from wslgpud.client import SOCKET
from wslgpud.config import ConfigError
from wslgpud.model import Reading
from wslgpud.security import safe_files
from wslgpud.serve.access import HostRule, WebConfigFile, is_loopback, is_unspecified
from wslgpud.serve.listener import BACKLOG, Deadlines, Listener
from wslgpud.serve.publisher import HTTP_CONNECTIONS, Publisher
from wslgpud.serve.router import Route, Router
from wslgpud.words import Message, MessageError

#: a program that announces its run may have nothing to say for so long
LOCAL_IDLE_SECONDS = 600.0
_log = logging.getLogger(__name__)


class ServeError(MessageError):
    """The server cannot listen; the message says where, why and what to do."""


class HttpServer:
    """Serves a publisher's snapshots from its own thread; whatever clients do, no other thread waits."""

    def __init__(
        self, settings: config.Server, publisher: Publisher, routes: Iterable[Route], deadlines: Deadlines | None = None
    ) -> None:
        """Check the settings.

        Raises ConfigError: the web configuration is invalid, or an unprotected server would be open to strangers.
        """
        self._settings, self._deadlines = settings, deadlines or Deadlines()
        self._web = WebConfigFile(settings.web_config_file)
        address = settings.address
        if not (self._web.current.guarded or settings.insecure or address == "localhost" or is_loopback(address)):
            raise ConfigError(
                "server.address {address} can be reached by others: give server.web_config_file "
                "with TLS and passwords (or client certificates), or set server.insecure = true",
                address=address,
            )
        host_rule = HostRule(settings.address, socket.gethostname(), settings.allowed_hosts)
        self._app = Router(routes, host_rule, self._web)
        self._listener: Listener | None = None
        self._port = settings.port
        publisher.add_collector(self.readings)

    def start(self) -> int:
        """Listen, serve from a new thread, and return the port. Raises ServeError: listening failed."""
        sock = bind(self._settings.address, self._settings.port)
        self._port = int(sock.getsockname()[1])
        self._listener = Listener(sock, self._app, self._web, self._deadlines, "wslgpud-serve")
        return self._port

    @property
    def url(self) -> str:
        """URL of the page, once started."""
        scheme = "https" if self._web.current.tls else "http"
        address = self._settings.address
        return f"{scheme}://{_place('localhost' if is_unspecified(address) else address, self._port)}/"

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """Accept no more connections, give started answers ``timeout_seconds`` to finish, drop the rest."""
        if self._listener:
            self._listener.stop(timeout_seconds)
            self._listener = None

    def readings(self) -> Iterator[Reading]:
        if self._listener:
            yield Reading(HTTP_CONNECTIONS, self._listener.connections)
        yield from self._app.readings()


def bind(address: str, port: int) -> socket.socket:
    """Return a socket bound to ``address`` and ``port``; ``::`` includes IPv4.

    Raises ServeError: it is in use, not allowed, or not an address of this machine; says what to do.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        sock = socket.create_server(
            (address, port),
            family=family,
            backlog=BACKLOG,
            dualstack_ipv6=address == "::" and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        raise ServeError(
            "cannot listen on {where}: {reason}; if wslgpud is not already running, "
            "choose another server.address or server.port",
            where=_place(address, port),
            reason=Message((error.strerror or "").partition(" (while ")[0]),  # in which Python repeats the address
        ) from error
    # Connections inherit it. Else the end of an answer waits up to 40 ms for the client's delayed acknowledgement where
    # it asks again at once; asyncio sets it only on sockets that were made with a protocol number.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _place(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


class LocalApi:
    """The control socket, in the daemon's folder: the whole API for commands, and orders that only they can give.

    Any user may connect; the kernel says who it is. Where the port is ``guarded`` (by a ``web.config.file``), only root
    and the daemon's own user may read, so that ``wslgpud status`` needs no stored password. A program may keep its
    connection open for as long as it runs.
    """

    def __init__(
        self, folder: Path, routes: Iterable[Route], *, guarded: bool = False, timeout_seconds: float = 5.0
    ) -> None:
        self.path = folder / SOCKET
        self._deadlines = Deadlines(timeout_seconds, LOCAL_IDLE_SECONDS, timeout_seconds)
        self._open = WebConfigFile("")
        table = [replace(route, owner=route.owner or (guarded and route.method == "GET")) for route in routes]
        self._app = Router(table, HostRule("localhost", "", ()), self._open)
        self._listener: Listener | None = None

    def start(self) -> bool:
        """Listen; False where the folder allows no socket (unsupported by its file system)."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        umask = os.umask(0)
        try:
            os.fchmod(sock.fileno(), 0o666)  # before bind(): by its path it could be another file by then
            self.path.unlink(missing_ok=True)  # left by a daemon that was killed
            with safe_files.socket_address(self.path) as address:
                sock.bind(address)
            self._listener = Listener(sock, self._app, self._open, self._deadlines, "wslgpud-local")
        except OSError as error:
            sock.close()
            _log.warning("commands cannot reach this daemon: no socket %s: %s", self.path, error)
            return False
        finally:
            os.umask(umask)
        return True

    def close(self) -> None:
        if self._listener is not None:
            self._listener.stop(1.0)
            self._listener = None
            self.path.unlink(missing_ok=True)
