"""The HTTP server on its port, and on a Unix socket for local commands: what can be done, and not only read."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wslgpud import config
from wslgpud.active_runs import MAX_BYTES, AnnouncedRuns, TooManyRuns
from wslgpud.alerts.manager import ControlFile, Silence
from wslgpud.client import SOCKET
from wslgpud.config import ConfigError
from wslgpud.host import Clock
from wslgpud.model import Reading, StressResult
from wslgpud.security import safe_files
from wslgpud.security.shapes import MalformedError, Shape, number, of, record, text, uint
from wslgpud.serve.access import HostRule, WebConfigFile, is_loopback, is_unspecified
from wslgpud.serve.api import Query, number_of
from wslgpud.serve.listener import BACKLOG, Deadlines, Listener
from wslgpud.serve.publisher import HTTP_CONNECTIONS, Publisher
from wslgpud.serve.router import Problem, Request, Response, Route, Router, dumps, packed
from wslgpud.store.records import MAX_RESULT_BYTES, stress_from_json
from wslgpud.words import Message, MessageError

if TYPE_CHECKING:
    from wslgpud.brake.brake import Brake

#: a program that announces its run may have nothing to say for so long
LOCAL_IDLE_SECONDS = 600.0
#: size of a document that a person's command sends
MAX_COMMAND_BYTES = 4096
_SILENCE = record({"rule": text, "resource": text, "seconds": number})
_BRAKE = record({"job": uint, "command": of(str, ("resume", "stop").__contains__)})
_ACKNOWLEDGEMENT = record({"incident": uint, "seen_id": of(int)})

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

    @property
    def guarded(self) -> bool:
        web = self._web.current
        return web.tls is not None or bool(web.users)

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """Accept no more connections, give started answers ``timeout_seconds`` to finish, drop the rest."""
        if self._listener:
            self._listener.stop(timeout_seconds)
            self._listener = None
        self._app.close()

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
    """The control socket, in the daemon's folder: the whole API for commands, and what only they can do.

    Any user may connect; the kernel says who it is. Where the server requires passwords or TLS, only root and the
    daemon's own user are answered, so that ``wslgpud status`` needs no stored password. A program may keep its
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
        self._app.close()


def seen_route(see: Callable[[int], bool]) -> Route:
    """Return the route by which the page tells that somebody has seen a lost job; ``see`` as in ``AlertManager``.

    The only thing that clients can do: whoever can read the page can do it, and it silences no warning.
    """

    def handler(request: Request) -> Response:
        Query(request.query, ())
        incident = number_of(request)
        try:
            if not see(incident):
                raise Problem(404, "no lost job of this incident waits to be seen")
        except OSError as error:
            raise Problem(503, f"that cannot be kept: {error.strerror}") from error
        return packed(request, dumps({"seen": incident}))

    return Route("/api/v1/seen/{incident}", handler, waits=True, method="POST")


def alert_routes(control: ControlFile, clock: Clock) -> list[Route]:
    """Return the routes of ``wslgpud alerts silence`` and ``ack``."""

    def silence(asked: Mapping[str, Any]) -> None:
        wall = clock.wall()
        control.silence(Silence(asked["rule"], asked["resource"], wall + asked["seconds"]), wall)

    def acknowledge(asked: Mapping[str, Any]) -> None:
        control.acknowledge(asked["incident"], asked["seen_id"])

    return [command("silence", _SILENCE, silence), command("acknowledge", _ACKNOWLEDGEMENT, acknowledge)]


def run_route(runs: AnnouncedRuns) -> Route:
    """Return the route by which any process announces its run, for as long as its connection lasts."""

    def handler(request: Request) -> Response:
        if request.peer is None:
            raise Problem(403, "runs are announced on the Unix socket")
        try:
            answer = runs.announce(request.peer, safe_files.parsed(request.body or b""))
        except ValueError as error:
            raise Problem(400, str(error)) from error
        except TooManyRuns as error:
            raise Problem(503, "too many runs are announced") from error
        return Response(200, dumps(answer), "application/json")

    return Route("/api/v1/run", handler, method="POST", max_body_bytes=MAX_BYTES)


def brake_route(brake: Brake) -> Route:
    """Return the route of ``wslgpud brake resume`` and ``stop``."""

    def act(asked: Mapping[str, Any]) -> None:
        if asked["job"] not in (job["job"] for job in brake.document()):
            raise LookupError("that job is not paused")
        brake.commands.append((asked["job"], asked["command"]))

    return command("brake", _BRAKE, act)


def stress_route(keep: Callable[[StressResult], None]) -> Route:
    """Return the route by which ``wslgpud stress`` hands over its run."""
    return command("stress-run", of(dict), lambda run: keep(stress_from_json(dict(run))), MAX_RESULT_BYTES)


def command(
    name: str, shape: Shape, act: Callable[[Mapping[str, Any]], None], max_bytes: int = MAX_COMMAND_BYTES
) -> Route:
    """Return the route by which root or the daemon's own user sends a document of a ``shape``."""

    def handler(request: Request) -> Response:
        try:
            document = safe_files.parsed(request.body or b"")
            if not shape(document):
                raise MalformedError("it has not the form that it must have")
            act(document)
        except ValueError as error:
            raise Problem(400, f"the document cannot be used: {error}") from error
        except LookupError as error:
            raise Problem(404, str(error)) from error
        except OSError as error:
            raise Problem(503, f"that cannot be kept: {error.strerror}") from error
        return Response(200, b"{}", "application/json")

    return Route(f"/api/v1/{name}", handler, method="POST", max_body_bytes=max_bytes, owner=True)
