"""The HTTP server: may it listen here, the socket, and the thread it runs in."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from wslgpud import config
from wslgpud.config_key import ConfigError
from wslgpud.model import Reading
from wslgpud.serve import health
from wslgpud.serve.connection import Deadlines
from wslgpud.serve.hosts import HostRule, is_loopback
from wslgpud.serve.http import App, Route
from wslgpud.serve.listener import Listener
from wslgpud.serve.publisher import Publisher
from wslgpud.serve.webconfig import WebConfigFile
from wslgpud.words import Message, failure, say

_BACKLOG = 1024
#: The kernel takes twice as much, and up to 4 MiB a connection if it may choose (tcp_wmem).
_SEND_BUFFER_BYTES = 1 << 16

_log = logging.getLogger(__name__)


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
        self._settings = settings
        self._socket = sock
        self._deadlines = deadlines or Deadlines()
        self._web = WebConfigFile(settings.web_config_file)
        _check_exposure(settings, guarded=self._web.current.guarded)
        host_rule = HostRule(settings.address, socket.gethostname(), settings.allowed_hosts)
        self._app = App(routes, host_rule, self._web)
        self._running: _Running | None = None
        publisher.include(self.readings)

    def start(self) -> int:
        """Listen, serve from a new thread, and return the port.

        Raises:
            ServeError: the address cannot be listened on.
        """
        sock = self._socket or bind(self._settings.address, self._settings.port)
        # What clients do not read is memory of ours in the kernel, too; connections inherit this.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
        port = int(sock.getsockname()[1])
        self._running = _Running(port, Listener(sock, self._app, self._web, self._deadlines))
        return port

    @property
    def url(self) -> str:
        """Where the page is, once started."""
        scheme = "https" if self._web.current.tls else "http"
        address = self._settings.address
        host = "localhost" if address in ("0.0.0.0", "::") else address  # noqa: S104 - only compared
        port = self._running.port if self._running else self._settings.port
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/"

    @property
    def guarded(self) -> bool:
        """Whether it asks for passwords, or speaks TLS."""
        web = self._web.current
        return web.tls is not None or bool(web.users)

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """Take no more connections, give started answers ``timeout_seconds`` to end, cut the rest."""
        if self._running:
            self._running.stop(timeout_seconds)
            self._running = None
        self._app.close()

    def readings(self) -> Iterator[Reading]:
        """Say what the server did."""
        if self._running:
            yield Reading(health.HTTP_CONNECTIONS, self._running.listener.connections)
        yield from self._app.readings()


class _Running:
    """A listener in its thread."""

    def __init__(self, port: int, listener: Listener) -> None:
        self.port = port
        self.listener = listener
        self._begun = threading.Event()
        # A daemon thread: an orderly end goes through stop(), and a crash of the rest must not hang on it.
        self._thread = threading.Thread(target=self._run, name="wslgpud-serve", daemon=True)
        self._thread.start()
        self._begun.wait()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            _log.exception("the HTTP server ended; metrics and page are gone until a restart")
            raise
        finally:
            self._begun.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun.set()
        await self.listener.serve()

    def stop(self, timeout_seconds: float) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.listener.stop, timeout_seconds)
            self._thread.join(timeout_seconds + 1)


def _check_exposure(settings: config.Server, *, guarded: bool) -> None:
    address = settings.address
    if guarded or settings.insecure or address == "localhost" or is_loopback(address):
        return
    raise ConfigError(
        say(
            "server.address {address} can be reached by others: give server.web_config_file "
            "with TLS and passwords (or client certificates), or set server.insecure = true",
            address=address,
        )
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
        raise ServeError(
            say("server.address {address}: {reason}", address=address, reason=failure(error))
        ) from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address != "::"))
        sock.bind(target)
        sock.listen(_BACKLOG)  # two may bind with SO_REUSEADDR; only one may listen
    except OSError as error:
        sock.close()
        raise ServeError(_why_not(error, where, address, port)) from error
    return sock


def _why_not(error: OSError, where: str, address: str, port: int) -> Message:
    if error.errno == errno.EADDRINUSE:
        return say(
            "address {where} is in use {who}; choose another with server.port",
            where=where,
            who=_by_whom(port),
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return say(
            "this machine has no address {address}; choose another with server.address", address=address
        )
    if error.errno == errno.EACCES:
        return say("only root may listen on {where}; choose a port above 1023 with server.port", where=where)
    return say(
        "cannot listen on {where}: {reason}", where=where, reason=Message(os.strerror(error.errno or 0))
    )


def _by_whom(port: int) -> Message:
    """Say who listens at a port, as far as we may see it."""
    import psutil  # noqa: PLC0415 - only this error needs it

    with suppress(psutil.Error, OSError):  # it has just gone, or is another user's
        for connection in psutil.net_connections("tcp"):
            at = connection.laddr.port if connection.laddr else None
            if at == port and connection.status == psutil.CONN_LISTEN and connection.pid is not None:
                process = psutil.Process(connection.pid)
                ours = any(Path(part).name == "wslgpud" for part in process.cmdline())
                if ours:
                    return say("by another wslgpud (pid {pid})", pid=connection.pid)
                return say("by {name} (pid {pid})", name=process.name(), pid=connection.pid)
    return say("(does wslgpud run already?)")
