"""Accepts a bounded number of connections and hands them to the application."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
from collections import Counter
from collections.abc import Iterable

import uvicorn
from uvicorn.server import ServerState

from wslgpud.serve.connection import Connection, Deadlines
from wslgpud.serve.hosts import network_of
from wslgpud.serve.http import HEAD_BYTES, App
from wslgpud.serve.webconfig import WebConfigFile

#: Open connections; for one more another is closed. Well below the 1,024 files a process may usually open,
#: for sources must be able to read the machine even while strangers hold connections open.
CONNECTIONS_MAX = 256
#: Unread responses in memory, all together: some of the largest.
UNREAD_BYTES_MAX = 16 << 20
#: what the kernel keeps of each answer: it takes twice as much, and up to 4 MiB if it may choose (tcp_wmem)
_SEND_BUFFER_BYTES = 1 << 16
BACKLOG = 1024
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = logging.getLogger(__name__)


def who_leaves(connections: Iterable[Connection]) -> Connection | None:
    """Return the connection to close for a new client: of the network with the most, the one idle for longest.

    None while all of them wait for us. A thousand slow clients would otherwise hold every slot for as long as a
    head may take, and a probe would wait behind them. A well-behaved client sends its head at once and is answered
    within a few turns of the event loop, long before it could become the oldest.
    """
    waited_for = [connection for connection in connections if connection.waits_for_client]
    crowd = Counter(connection.network for connection in waited_for)
    return min(waited_for, key=lambda one: (-crowd[one.network], one.since), default=None)


class Listener:
    """uvicorn's HTTP on connections we accept ourselves.

    uvicorn's own server wakes ten times a second to see whether it should stop, takes any number of
    connections, and keeps one TLS context for ever; here nothing runs until a client comes, places are
    counted from the TLS handshake on, and a renewed certificate holds from the next connection on.
    """

    def __init__(self, sock: socket.socket, app: App, web: WebConfigFile, deadlines: Deadlines) -> None:
        """Listen on ``sock``, which is bound."""
        # What clients do not read is memory of ours in the kernel, too; connections inherit this.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        sock.listen(BACKLOG)
        sock.setblocking(False)
        self._socket, self._app, self._web, self._deadlines = sock, app, web, deadlines
        self._connections: set[Connection] = set()
        self._left = asyncio.Event()
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
        self._accepting = asyncio.create_task(self._accept())
        await asyncio.wait([self._accepting])
        self._socket.close()
        for connection in tuple(self._connections):
            connection.finish()
        try:
            await asyncio.wait_for(self._fewer_than(1), self._drain_seconds)
        except asyncio.TimeoutError:
            for connection in tuple(self._connections):
                connection.abort()
        if not self._accepting.cancelled():
            self._accepting.result()  # which raises what nobody foresaw

    def stop(self, drain_seconds: float) -> None:
        """End ``serve``; call it on the loop's own thread."""
        self._drain_seconds = drain_seconds
        self._accepting.cancel()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        greetings: set[asyncio.Task[None]] = set()  # the loop itself keeps tasks only weakly
        while True:
            try:
                client, place = await loop.sock_accept(self._socket)
            except OSError as error:
                if error.errno in _NO_FILES:
                    _log.error("cannot take a connection: %s", error.strerror)
                    await asyncio.sleep(1)  # or the same error would come at once, again and again
                continue
            if len(self._connections) >= CONNECTIONS_MAX and (guest := who_leaves(self._connections)):
                guest.abort()
            await self._fewer_than(CONNECTIONS_MAX)
            connection = Connection(self._config, self._state, self._deadlines, self)
            connection.network = network_of(str(place[0])) if place else ""  # a Unix socket's has no name
            self._connections.add(connection)
            greeting = connection.greeting = asyncio.create_task(self._greet(client, connection))
            greetings.add(greeting)
            greeting.add_done_callback(greetings.discard)
            # One per turn of the loop: otherwise a burst would fill all slots and push out its own first clients
            # before a single head is read.
            await asyncio.sleep(0)

    async def _fewer_than(self, count: int) -> None:
        while len(self._connections) >= count:
            self._left.clear()
            await self._left.wait()

    def refused(self, status: int) -> None:
        """Count what was not HTTP."""
        self._app.count_refused(status)

    def left(self, connection: Connection) -> None:
        """Free the slot of a closed connection."""
        self._connections.discard(connection)
        self._left.set()

    def unread(self) -> None:
        """Close connections of clients that do not read, until the unread responses are small enough."""
        deaf = {connection for connection in self._connections if connection.unread_bytes}
        while sum(connection.unread_bytes for connection in deaf) > UNREAD_BYTES_MAX and (guest := who_leaves(deaf)):
            guest.abort()
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
        except OSError as error:  # a client that gave up, or a failed TLS handshake
            _log.debug("no connection: %s", error)
        finally:
            if not connection.begun:  # it failed: free the slot
                self.left(connection)


class Serving:
    """A listener in a thread of its own; whatever clients do, nobody else waits."""

    def __init__(self, listener: Listener, name: str) -> None:
        self.listener = listener
        self._begun = threading.Event()
        # A daemon thread: an orderly end goes through stop(), and a crash of the rest must not hang on it.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._begun.wait()

    def _run(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._begun.set()
            await self.listener.serve()

        try:
            asyncio.run(serve())
        except Exception:
            _log.exception("the HTTP server ended; metrics and page are gone until a restart")
            raise
        finally:
            self._begun.set()

    def stop(self, timeout_seconds: float) -> None:
        """Take no more connections, give started answers ``timeout_seconds`` to end, cut the rest."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.listener.stop, timeout_seconds)
            self._thread.join(timeout_seconds + 1)
