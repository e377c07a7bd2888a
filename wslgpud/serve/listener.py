"""Accepts a bounded number of connections, serves HTTP/1.1 by h11, and drops slow clients."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import h11

from wslgpud.serve.access import WebConfigFile, network_of
from wslgpud.serve.router import MAX_HEAD_BYTES, Headers, Request, Response, Router
from wslgpud.sources.procfs import Peer


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Time limits for clients, in seconds."""

    #: TLS handshake, and the head of a request
    head_seconds: float = 10.0
    #: idle between two requests
    idle_seconds: float = 30.0
    #: reading the last answer of a connection, or enough of one that buffers have room again
    answer_seconds: float = 30.0


class Connection(asyncio.Protocol):
    """Answers a client's requests one after another; a deadline runs while it is the client's turn."""

    def __init__(
        self, app: Router, network: str, peer: Peer | None, deadlines: Deadlines, on_backlog: Callable[[], None]
    ) -> None:
        """Prepare for a client in ``network``, see ``access.network_of``; ``on_backlog``: its answers pile up."""
        self.network, self._peer = network, peer
        self._app, self._deadlines, self._on_backlog = app, deadlines, on_backlog
        self._loop = asyncio.get_running_loop()
        self.since = self._loop.time()
        #: whether it is the client's turn: TLS handshake, request, or reading the answer
        self.waits_for_client = True
        #: does the TLS handshake, if any, and serves; kept, as the loop itself holds tasks only weakly
        self.task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._wire = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._readable, self._writable, self._closed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._writable.set()
        self._timer: asyncio.TimerHandle | None = None
        self._idle = self._final = self._reads_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as asyncio calls it
        """Start with the TLS handshake, if any."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._wire.receive_data(data)
        self._readable.set()
        if self._wire.their_state is not h11.IDLE and not self._reads_body:
            self._limit_pipelining()

    def _limit_pipelining(self) -> None:
        """Drop a client that pipelines too many requests."""
        if len(self._wire.trailing_data[0]) > MAX_HEAD_BYTES:
            self.abort()

    def pause_writing(self) -> None:
        """Start no further answer: the client has let all buffers fill up."""
        self._writable.clear()
        self._on_backlog()

    def resume_writing(self) -> None:
        """Continue: there is room again."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - whatever the reason
        """Wake up tasks that wait for the client."""
        if self._peer is not None:
            self._peer.gone = True
        for event in (self._closed, self._readable, self._writable):
            event.set()

    async def serve(self) -> None:
        """Answer requests until either side ends the connection; return when it is gone."""
        try:
            request = await self._request(idle=False)
            while request is not None and await self._answer(request):
                await asyncio.sleep(0)  # give other connections their turn, however many requests are queued here
                request = await self._request(idle=True)
        except h11.RemoteProtocolError as error:
            self._send(*self._app.refuse(error.error_status_hint))
        self._set_deadline(self._deadlines.answer_seconds)
        self.finish()
        await self._closed.wait()

    async def _request(self, *, idle: bool) -> Request | None:
        """Return the next request; None if there will be none. After the ``idle`` time its head is due."""
        self._idle = idle
        self._set_deadline(self._deadlines.idle_seconds if idle else self._deadlines.head_seconds)
        event = await self._event()
        self._set_deadline(None)
        self._idle = False
        if not isinstance(event, h11.Request):
            return None
        path, _, query = event.target.partition(b"?")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        size = len(event.target) + sum(len(name) + len(value) for name, value in event.headers)
        version, asked = event.http_version.decode(), (event.method.decode(), unquote(path.decode()), query.decode())
        request = Request(*asked, headers, size, version, self.network, self._peer)
        if request.has_body and (max_bytes := self._app.max_body_bytes(request)):
            request = replace(request, body=await self._body(max_bytes))
        elif not request.has_body:
            self._wire.next_event()  # its end
            self._limit_pipelining()
        return request

    async def _event(self) -> Any:
        """Wait for the client's next event; NEED_DATA if it is gone."""
        while (event := self._wire.next_event()) is h11.NEED_DATA and not self._closing:
            if self._idle and self._wire.trailing_data[0]:
                self._idle = False
                self._set_deadline(self._deadlines.head_seconds)
            self._readable.clear()
            await self._readable.wait()
        return event

    async def _body(self, max_bytes: int) -> bytes | None:
        """Return the body of a request; None if it is longer, or the client gone."""
        body, self._reads_body = bytearray(), True
        self._set_deadline(self._deadlines.head_seconds)
        while isinstance(event := await self._event(), h11.Data) and len(body) <= max_bytes:
            body += event.data
        self._set_deadline(None)
        self._reads_body = False
        return bytes(body) if isinstance(event, h11.EndOfMessage) and len(body) <= max_bytes else None

    async def _answer(self, request: Request) -> bool:
        """Answer a request; False if it was the last one."""
        self.waits_for_client = False
        response, headers = await self._app.respond(request)
        self.since, self.waits_for_client = self._loop.time(), True
        self._send(response, headers, empty=request.method == "HEAD")
        if self._final or self._wire.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
            return False
        # An answer that has filled the buffers must be read before the next one, or the next request.
        self._set_deadline(self._deadlines.answer_seconds)
        await self._writable.wait()
        self._wire.start_next_cycle()
        return True

    def _send(self, answer: Response, headers: Headers, *, empty: bool = False) -> None:
        if self._transport is None or self._closing:
            return
        head = h11.Response(status_code=answer.status, reason=HTTPStatus(answer.status).phrase, headers=headers)
        events = head, h11.Data(data=b"" if empty else answer.body), h11.EndOfMessage()
        self._transport.write(b"".join(self._wire.send(event) or b"" for event in events))

    def finish(self) -> None:
        """Close after the current answer, at once if there is none."""
        self._final = True
        if self._transport is not None and self.waits_for_client:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, even during the handshake."""
        self._set_deadline(None)
        if self._transport is not None:
            with suppress(AttributeError):  # 3.11.2's TLS transport, once lost, cannot be aborted
                self._transport.abort()
        elif self.task is not None:
            self.task.cancel()

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that wait in memory for the client to read them."""
        with suppress(AttributeError):  # as below
            return 0 if self._transport is None else self._transport.get_write_buffer_size()
        return 0

    @property
    def _closing(self) -> bool:
        with suppress(AttributeError):  # 3.10's TLS transport, once lost, cannot be queried
            return self._closed.is_set() or self._transport is None or self._transport.is_closing()
        return True

    def _set_deadline(self, seconds: float | None) -> None:
        """Set the client's deadline; None clears it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._on_deadline)

    def _on_deadline(self) -> None:
        """Close gracefully if nothing is in transit in either direction; otherwise that might never end."""
        if self._idle and not self.unread_bytes:
            self.finish()
        else:
            self.abort()


#: Limit of open connections; for a new one another is closed. Well below the usual limit of 1,024 open files, as
#: sources must be able to read even while strangers hold connections open.
MAX_CONNECTIONS = 256
#: Limit of unread responses in memory, in total: a few of the largest.
MAX_UNREAD_BYTES = 16 << 20
#: send buffer per connection: the kernel takes twice as much, and up to 4 MiB by default (tcp_wmem)
_SEND_BUFFER_BYTES = 1 << 16
BACKLOG = 1024
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = logging.getLogger(__name__)


def to_evict(connections: Iterable[Connection]) -> Connection | None:
    """Return the connection to close for a new client: in the network with the most, the one idle for longest.

    None while all of them wait for us. A thousand slow clients would otherwise hold every slot for as long as a head
    may take, and a probe would wait behind them. A well-behaved client sends its head at once and is answered within a
    few turns of the event loop, long before it could become the oldest.
    """
    waited_for = [connection for connection in connections if connection.waits_for_client]
    per_network = Counter(connection.network for connection in waited_for)
    return min(waited_for, key=lambda one: (-per_network[one.network], one.since), default=None)


def _peer(client: socket.socket) -> Peer | None:
    """Return who has connected to a Unix socket, see unix(7); None for any other socket."""
    if client.family != socket.AF_UNIX:
        return None
    pid, uid, _ = struct.unpack("iII", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return Peer(pid, uid)


class Listener:
    """Serves from its own thread, which alone waits for clients, and is idle until one comes.

    Connections count from the TLS handshake on, and a renewed certificate applies from the next connection on.
    """

    def __init__(self, sock: socket.socket, app: Router, web: WebConfigFile, deadlines: Deadlines, name: str) -> None:
        """Listen on the bound ``sock``, and serve. Raises OSError: listening failed."""
        # Unread data also takes our kernel memory; connections inherit this limit.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        sock.listen(BACKLOG)
        sock.setblocking(False)
        self._app, self._socket, self._web, self._deadlines = app, sock, web, deadlines
        self._connections: set[Connection] = set()
        self._left = asyncio.Event()
        self._drain_seconds = 0.0
        self._begun = threading.Event()
        # A daemon thread: a clean shutdown goes through stop(), and a crash elsewhere must not hang on it.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._begun.wait()

    @property
    def connections(self) -> int:
        """Number of open connections, including TLS handshakes."""
        return len(self._connections)

    def stop(self, timeout_seconds: float) -> None:
        """Accept no more connections, give started answers ``timeout_seconds`` to finish, drop the rest."""
        if self._thread.is_alive():
            self._drain_seconds = timeout_seconds
            self._loop.call_soon_threadsafe(self._accepting.cancel)
            self._thread.join(timeout_seconds + 1)
        self._app.close()

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
        self._accepting = asyncio.create_task(self._accept())
        self._begun.set()
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
            self._accepting.result()  # raises unexpected errors

    async def _next_client(self) -> tuple[socket.socket, Any]:
        """Wait for a client. A cancelled ``loop.sock_accept`` may have accepted one, which nobody would close."""
        while True:
            with suppress(BlockingIOError):
                client, place = self._socket.accept()
                client.setblocking(False)
                return client, place
            readable = asyncio.Event()
            self._loop.add_reader(self._socket, readable.set)
            try:
                await readable.wait()
            finally:
                self._loop.remove_reader(self._socket)

    async def _accept(self) -> None:
        while True:
            try:
                client, place = await self._next_client()
            except OSError as error:
                if error.errno in _NO_FILES:
                    _log.error("cannot take a connection: %s", error.strerror)
                    await asyncio.sleep(1)  # or the same error would recur at once
                continue
            if len(self._connections) >= MAX_CONNECTIONS and (evicted := to_evict(self._connections)):
                evicted.abort()
            try:
                await self._fewer_than(MAX_CONNECTIONS)
            except asyncio.CancelledError:
                client.close()
                raise
            peer = _peer(client)
            network = network_of(str(place[0])) if peer is None else f"uid {peer.uid}"
            connection = Connection(self._app, network, peer, self._deadlines, self._limit_backlog)
            self._connections.add(connection)
            connection.task = asyncio.create_task(self._begin(client, connection))
            # One per turn of the loop: otherwise a burst would fill all slots and evict its own first clients before a
            # single head is read.
            await asyncio.sleep(0)

    async def _fewer_than(self, count: int) -> None:
        while len(self._connections) >= count:
            self._left.clear()
            await self._left.wait()

    def _limit_backlog(self) -> None:
        """Close connections of clients that do not read, until the total of unread responses is small enough."""
        stalled = {connection for connection in self._connections if connection.unread_bytes}
        while sum(connection.unread_bytes for connection in stalled) > MAX_UNREAD_BYTES and (
            evicted := to_evict(stalled)
        ):
            evicted.abort()
            stalled.discard(evicted)

    async def _begin(self, client: socket.socket, connection: Connection) -> None:
        try:
            web = self._web.refresh()
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                client,
                ssl=web.tls,
                ssl_handshake_timeout=self._deadlines.head_seconds if web.tls else None,
            )
            await connection.serve()
        except OSError as error:  # a client that gave up, or a failed TLS handshake
            _log.debug("connection failed: %s", error)
        finally:
            connection.abort()  # otherwise 3.10's TLS transport, lost by an error, would warn that it is open
            self._connections.discard(connection)
            self._left.set()
