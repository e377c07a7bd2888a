"""Takes connections off a listening socket, so many at a time, and hands them to the application."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket

import uvicorn
from uvicorn.server import ServerState

from wslgpud.serve.connection import Connection, Deadlines
from wslgpud.serve.crowd import network_of, who_leaves
from wslgpud.serve.http import HEAD_BYTES, App
from wslgpud.serve.webconfig import WebConfigFile

#: Open connections; for one more somebody must leave. Well below the 1,024 files a process may usually open,
#: for sources must be able to read the machine even while strangers hold connections open.
CONNECTIONS_MAX = 256
#: Answers in memory that their clients do not take, together: some of the largest.
UNREAD_BYTES_MAX = 16 << 20
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = logging.getLogger(__name__)


class Listener:
    """uvicorn's HTTP on connections we accept ourselves.

    uvicorn's own server wakes ten times a second to see whether it should stop, takes any number of
    connections, and keeps one TLS context for ever; here nothing runs until a client comes, places are
    counted from the TLS handshake on, and a renewed certificate holds from the next connection on.
    """

    def __init__(self, sock: socket.socket, app: App, web: WebConfigFile, deadlines: Deadlines) -> None:
        """Prepare to serve ``app`` on ``sock``, which listens and does not block."""
        self._socket = sock
        self._app = app
        self._web = web
        self._deadlines = deadlines
        self._connections: set[Connection] = set()
        self._room = asyncio.Event()
        self._empty = asyncio.Event()
        self._stopping = asyncio.Event()
        self._drain_seconds = 0.0
        self._state = ServerState()
        self._config = uvicorn.Config(
            app,
            interface="asgi3",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=deadlines.idle_seconds,
            h11_max_incomplete_event_size=HEAD_BYTES,
        )
        self._config.load()

    @property
    def connections(self) -> int:
        """How many connections are open, TLS handshakes included."""
        return len(self._connections)

    async def serve(self) -> None:
        """Serve until ``stop``; then give started answers their time, and cut the rest."""
        accepting = asyncio.create_task(self._accept())
        await asyncio.wait(
            [accepting, stopping := asyncio.create_task(self._stopping.wait())], return_when="FIRST_COMPLETED"
        )
        for task in (accepting, stopping):
            task.cancel()
        await asyncio.gather(accepting, stopping, return_exceptions=True)
        self._socket.close()
        await self._drain()

    def stop(self, drain_seconds: float) -> None:
        """End ``serve``; call it on the loop's own thread."""
        self._drain_seconds = drain_seconds
        self._stopping.set()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        greetings: set[asyncio.Task[None]] = set()  # the loop itself keeps tasks only weakly
        self._count()
        while True:
            try:
                client, place = await loop.sock_accept(self._socket)
            except OSError as error:
                if error.errno in _NO_FILES:
                    _log.error("cannot take a connection: %s", error.strerror)
                    await asyncio.sleep(1)  # or the same error would come at once, again and again
                continue
            await self._make_room()
            connection = Connection(self._config, self._state, self._deadlines, self)
            connection.network = network_of(str(place[0]))
            self._connections.add(connection)
            self._count()
            greeting = connection.greeting = asyncio.create_task(self._greet(client, connection))
            greetings.add(greeting)
            greeting.add_done_callback(greetings.discard)
            # One a turn of the loop: a burst would else fill all places, and its first clients be pushed out,
            # before a single head is read.
            await asyncio.sleep(0)

    async def _make_room(self) -> None:
        """Wait for a place; while all are taken, somebody has to leave his."""
        if not self._room.is_set() and (guest := who_leaves(self._connections)):
            guest.make_room()
        await self._room.wait()

    def refused(self, status: int) -> None:
        """Count what was not HTTP."""
        self._app.count_refused(status)

    def left(self, connection: Connection) -> None:
        """Give its place to whoever comes."""
        self._connections.discard(connection)
        self._count()

    def unread(self) -> None:
        """End connections of clients that take no answers, until those still in memory are few enough."""
        deaf = {connection for connection in self._connections if connection.unread_bytes}
        while sum(connection.unread_bytes for connection in deaf) > UNREAD_BYTES_MAX and (
            guest := who_leaves(deaf)
        ):
            guest.make_room()
            deaf.discard(guest)

    async def _greet(self, client: socket.socket, connection: Connection) -> None:
        try:
            web = self._web.refresh()
            connection.client_allowed_sans = web.client_allowed_sans
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                client,
                ssl=web.tls,
                ssl_handshake_timeout=self._deadlines.head_seconds if web.tls else None,
            )
        except OSError as error:  # a client that gave up, or with whom there is no TLS to agree on
            _log.debug("no connection: %s", error)
        finally:
            if not connection.begun:  # whatever it was, the place is free
                self.left(connection)

    def _count(self) -> None:
        for event, holds in (
            (self._room, len(self._connections) < CONNECTIONS_MAX),
            (self._empty, not self._connections),
        ):
            if holds:
                event.set()
            else:
                event.clear()

    async def _drain(self) -> None:
        for connection in tuple(self._connections):
            connection.finish()
        try:
            await asyncio.wait_for(self._empty.wait(), self._drain_seconds)
        except asyncio.TimeoutError:
            for connection in tuple(self._connections):
                connection.abort()
