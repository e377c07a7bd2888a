"""Accepts a bounded number of HTTP/1.1 connections: uvicorn's, with the deadlines it lacks."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from wslgpud.serve.access import network_of
from wslgpud.serve.http import HEAD_BYTES, App, refusal, response_headers
from wslgpud.serve.webconfig import WebConfigFile

# uvicorn writes a line for each request that is not HTTP; strangers could fill the journal with those. They
# are counted instead.
_UVICORN_LOG = logging.getLogger("wslgpud.serve.uvicorn")
_UVICORN_LOG.setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a client may take."""

    #: to agree on TLS, and to send the head of a request
    head_seconds: float = 10.0
    #: between two requests
    idle_seconds: int = 30
    #: to take an answer after which the connection ends, or some of one that has filled the buffers
    answer_seconds: float = 30.0


class Connection(H11Protocol):
    """Disconnects clients that are slow on purpose, for which uvicorn would wait forever."""

    def __init__(self, config: uvicorn.Config, state: ServerState, deadlines: Deadlines, listener: Listener) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        #: where the client is, see ``access.network_of``
        self.network = ""
        self.since = self.loop.time()
        #: agrees on TLS, if that is spoken; kept, for the loop itself holds tasks only weakly
        self.handshake: asyncio.Task[None] | None = None
        self.logger = _UVICORN_LOG
        self._deadlines, self._listener = deadlines, listener
        self._deadline_of: dict[str, asyncio.TimerHandle] = {}
        self.client_allowed_sans: tuple[str, ...] = ()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Begin; the first head is due."""
        super().connection_made(transport)
        certificate = transport.get_extra_info("peercert")
        if certificate and self.client_allowed_sans:
            names = {value for _, value in certificate.get("subjectAltName", ())}
            if names.isdisjoint(self.client_allowed_sans):
                transport.abort()
                return
        self._abort_in(self._deadlines.head_seconds, "turn")

    def data_received(self, data: bytes) -> None:
        """Take bytes; until they make a head, the deadline that began with the first of them stands."""
        super().data_received(data)
        if len(self.conn.trailing_data[0]) > HEAD_BYTES:  # pipelined further than anybody has to buffer
            self.transport.abort()
        elif self.conn.their_state in (h11.IDLE, h11.ERROR):
            if "turn" not in self._deadline_of:
                self._abort_in(self._deadlines.head_seconds, "turn")
        elif not self.transport.is_closing():
            self._abort_in(None, "turn")

    def on_response_complete(self) -> None:
        """Give the client its time to read the response."""
        self.since = self.loop.time()
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_in(self._deadlines.answer_seconds, "turn")

    def pause_writing(self) -> None:
        """Start the deadline of a client that has let all buffers fill up.

        uvicorn starts no further response meanwhile and would wait forever; no other deadline applies.
        """
        super().pause_writing()
        self._abort_in(self._deadlines.answer_seconds, "stalled")
        self._listener.unread()

    def resume_writing(self) -> None:
        """Go on: there is room again."""
        super().resume_writing()
        self._abort_in(None, "stalled")

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; one that has not even read its response would never close by itself."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, _msg: str) -> None:
        """Refuse what is not HTTP; uvicorn calls this while it handles h11's error, which has the status."""
        status = getattr(sys.exc_info()[1], "error_status_hint", 400)
        self._listener.app.count_refused(status)
        if self._answering:
            self.cycle.disconnected = True  # what it still sends is dropped silently
        if self.conn.our_state is not h11.IDLE:
            self.transport.abort()
            return
        answer = refusal(status)
        head = h11.Response(status_code=status, headers=response_headers(answer, {}))
        for event in (head, h11.Data(data=answer.body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up."""
        self._abort_in(None, "turn")
        self._abort_in(None, "stalled")
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._listener.left(self)
        # Lost by an error, 3.10's TLS transport would complain that it is open; 3.11.2's has nothing left to abort.
        with suppress(AttributeError):
            self.transport.abort()

    def finish(self) -> None:
        """Close after the current response, at once if there is none."""
        if self._answering:
            self.cycle.keep_alive = False
        elif self.begun:
            self.transport.close()

    def abort(self) -> None:
        """Close at once, even during the handshake."""
        if self._answering:
            self.cycle.disconnected = True
        if self.begun:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    @property
    def waits_for_client(self) -> bool:
        """Whether it is the client's turn: to agree on TLS, to ask, or to take what was answered."""
        return not self._answering or "stalled" in self._deadline_of

    @property
    def unread_bytes(self) -> int:
        """What was answered and waits in memory until the client takes it."""
        return self.transport.get_write_buffer_size() if self.begun else 0

    @property
    def begun(self) -> bool:
        """Tell whether TLS, if any, is agreed on; uvicorn declares what is None until then as never None."""
        return self.transport is not None

    @property
    def _answering(self) -> bool:
        """Tell whether a request is being answered; the same holds for what is None until the first one."""
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]

    def _abort_in(self, seconds: float | None, why: str) -> None:
        """Set the deadline called ``why`` anew; None takes it back."""
        if timer := self._deadline_of.pop(why, None):
            timer.cancel()
        if seconds is not None:
            self._deadline_of[why] = self.loop.call_later(seconds, self.transport.abort)


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


def to_evict(connections: Iterable[Connection]) -> Connection | None:
    """Return the connection to close for a new client: of the network with the most, the one idle for longest.

    None while all of them wait for us. A thousand slow clients would otherwise hold every slot for as long as a
    head may take, and a probe would wait behind them. A well-behaved client sends its head at once and is answered
    within a few turns of the event loop, long before it could become the oldest.
    """
    waited_for = [connection for connection in connections if connection.waits_for_client]
    per_network = Counter(connection.network for connection in waited_for)
    return min(waited_for, key=lambda one: (-per_network[one.network], one.since), default=None)


class Listener:
    """uvicorn's HTTP on connections we accept ourselves, in a thread of its own: nobody else waits for clients.

    uvicorn's own server wakes ten times a second to see whether it should stop, takes any number of
    connections, and keeps one TLS context for ever; here nothing runs until a client comes, places are
    counted from the TLS handshake on, and a renewed certificate holds from the next connection on.
    """

    def __init__(self, sock: socket.socket, app: App, web: WebConfigFile, deadlines: Deadlines, name: str) -> None:
        """Listen on ``sock``, which is bound, and serve. Raises OSError: it cannot be listened on."""
        # What clients do not read is memory of ours in the kernel, too; connections inherit this.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        sock.listen(BACKLOG)
        sock.setblocking(False)
        self.app, self._socket, self._web, self._deadlines = app, sock, web, deadlines
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
        self._begun = threading.Event()
        # A daemon thread: an orderly end goes through stop(), and a crash of the rest must not hang on it.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._begun.wait()

    @property
    def connections(self) -> int:
        """How many connections are open, TLS handshakes included."""
        return len(self._connections)

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """Take no more connections, give started answers ``timeout_seconds`` to end, cut the rest."""
        if self._thread.is_alive():
            self._drain_seconds = timeout_seconds
            self._loop.call_soon_threadsafe(self._accepting.cancel)
            self._thread.join(timeout_seconds + 1)

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
            self._accepting.result()  # which raises what nobody foresaw

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, place = await loop.sock_accept(self._socket)
            except OSError as error:
                if error.errno in _NO_FILES:
                    _log.error("cannot take a connection: %s", error.strerror)
                    await asyncio.sleep(1)  # or the same error would come at once, again and again
                continue
            if len(self._connections) >= CONNECTIONS_MAX and (evicted := to_evict(self._connections)):
                evicted.abort()
            await self._fewer_than(CONNECTIONS_MAX)
            connection = Connection(self._config, self._state, self._deadlines, self)
            connection.network = network_of(str(place[0])) if place else ""  # a Unix socket's has no name
            self._connections.add(connection)
            connection.handshake = asyncio.create_task(self._begin(client, connection))
            # One per turn of the loop: otherwise a burst would fill all slots and push out its own first clients
            # before a single head is read.
            await asyncio.sleep(0)

    async def _fewer_than(self, count: int) -> None:
        while len(self._connections) >= count:
            self._left.clear()
            await self._left.wait()

    def left(self, connection: Connection) -> None:
        """Free the slot of a closed connection."""
        self._connections.discard(connection)
        self._left.set()

    def unread(self) -> None:
        """Close connections of clients that do not read, until the unread responses are small enough."""
        stalled = {connection for connection in self._connections if connection.unread_bytes}
        while sum(connection.unread_bytes for connection in stalled) > UNREAD_BYTES_MAX and (
            evicted := to_evict(stalled)
        ):
            evicted.abort()
            stalled.discard(evicted)

    async def _begin(self, client: socket.socket, connection: Connection) -> None:
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
