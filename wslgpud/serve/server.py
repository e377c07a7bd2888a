"""The HTTP server: its socket, and whether it may listen there."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from wslgpud import config
from wslgpud.config.key import ConfigError
from wslgpud.model import Reading
from wslgpud.serve import serve_metrics
from wslgpud.serve.connection import Deadlines
from wslgpud.serve.hosts import HostRule, is_loopback, is_unspecified
from wslgpud.serve.http import App, Route
from wslgpud.serve.listener import BACKLOG, Listener, Serving
from wslgpud.serve.publisher import Publisher
from wslgpud.serve.webconfig import WebConfigFile
from wslgpud.words import Message, failure, say


class ServeError(Exception):
    """The server cannot listen; one line that says where, why and what to do."""


class Server:
    """Serves what a publisher holds from a thread of its own; whatever clients do, nobody else waits."""

    def __init__(
        self,
        settings: config.Server,
        publisher: Publisher,
        routes: Iterable[Route],
        sock: socket.socket | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        """Check the settings; ``sock`` is an already bound socket to use instead of settings' address.

        Raises:
            ConfigError: the web configuration cannot be used, or strangers could reach what nothing guards.
        """
        self._settings, self._socket, self._deadlines = settings, sock, deadlines or Deadlines()
        self._web = WebConfigFile(settings.web_config_file)
        _check_exposure(settings, guarded=self._web.current.guarded)
        host_rule = HostRule(settings.address, socket.gethostname(), settings.allowed_hosts)
        self._app = App(routes, host_rule, self._web)
        self._serving: Serving | None = None
        self._port = settings.port
        publisher.add_collector(self.readings)

    def start(self) -> int:
        """Listen, serve from a new thread, and return the port.

        Raises:
            ServeError: the address cannot be listened on.
        """
        sock = self._socket or bind(self._settings.address, self._settings.port)
        self._port = int(sock.getsockname()[1])
        self._serving = Serving(Listener(sock, self._app, self._web, self._deadlines), "wslgpud-serve")
        return self._port

    @property
    def url(self) -> str:
        """Where the page is, once started."""
        scheme = "https" if self._web.current.tls else "http"
        address = self._settings.address
        host = "localhost" if is_unspecified(address) else address
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._port}/"

    @property
    def guarded(self) -> bool:
        """Whether it asks for passwords, or speaks TLS."""
        web = self._web.current
        return web.tls is not None or bool(web.users)

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """Take no more connections, give started answers ``timeout_seconds`` to end, cut the rest."""
        if self._serving:
            self._serving.stop(timeout_seconds)
            self._serving = None
        self._app.close()

    def readings(self) -> Iterator[Reading]:
        """Return the server's own metrics."""
        if self._serving:
            yield Reading(serve_metrics.HTTP_CONNECTIONS, self._serving.listener.connections)
        yield from self._app.readings()


def _check_exposure(settings: config.Server, *, guarded: bool) -> None:
    address = settings.address
    if not (guarded or settings.insecure or address == "localhost" or is_loopback(address)):
        raise ConfigError(
            "server.address {address} can be reached by others: give server.web_config_file "
            "with TLS and passwords (or client certificates), or set server.insecure = true",
            address=address,
        )


def bind(address: str, port: int) -> socket.socket:
    """Return a socket bound to ``address`` and ``port``; ``::`` takes IPv4 too.

    Raises:
        ServeError: it is taken, not allowed, or not an address of this machine.
    """
    where = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ServeError(say("server.address {address}: {reason}", address=address, reason=failure(error))) from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address != "::"))
        sock.bind(target)
        sock.listen(BACKLOG)  # two may bind with SO_REUSEADDR; only one may listen
    except OSError as error:
        sock.close()
        raise ServeError(_why_not(error, where, address, port)) from error
    return sock


def _why_not(error: OSError, where: str, address: str, port: int) -> Message:
    if error.errno == errno.EADDRINUSE:
        return say("address {where} is in use {who}; choose another with server.port", where=where, who=_by_whom(port))
    if error.errno == errno.EADDRNOTAVAIL:
        return say("this machine has no address {address}; choose another with server.address", address=address)
    if error.errno == errno.EACCES:
        return say("only root may listen on {where}; choose a port above 1023 with server.port", where=where)
    return say("cannot listen on {where}: {reason}", where=where, reason=Message(os.strerror(error.errno or 0)))


def _by_whom(port: int) -> Message:
    """Return which process listens on a port, if we may see it."""
    import psutil  # only this error needs it

    with suppress(psutil.Error, OSError):  # it has just gone, or is another user's
        for connection in psutil.net_connections("tcp"):
            at, pid = connection.laddr.port if connection.laddr else None, connection.pid
            if at == port and connection.status == psutil.CONN_LISTEN and pid is not None:
                process = psutil.Process(pid)
                if any(Path(part).name == "wslgpud" for part in process.cmdline()):
                    return say("by another wslgpud (pid {pid})", pid=pid)
                return say("by {name} (pid {pid})", name=process.name(), pid=pid)
    return say("(does wslgpud run already?)")
