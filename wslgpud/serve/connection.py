"""One HTTP/1.1 connection: uvicorn's, with the deadlines and the silence it lacks."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass
from typing import Protocol

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from wslgpud.serve.http import HEAD_BYTES, refusal, response_headers

# uvicorn writes a line for each request that is not HTTP; strangers could fill the journal with those. They
# are counted instead.
_log = logging.getLogger("wslgpud.serve.uvicorn")
_log.setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a client may take."""

    #: to agree on TLS, and to send the head of a request
    head_seconds: float = 10.0
    #: between two requests
    idle_seconds: int = 30
    #: to take an answer after which the connection ends, or some of one that has filled the buffers
    answer_seconds: float = 30.0


class Keeper(Protocol):
    """Keeps all connections, and is told what happens to them."""

    def refused(self, status: int) -> None:
        """What came was not HTTP."""

    def left(self, connection: Connection) -> None:
        """A connection has ended."""

    def unread(self) -> None:
        """A client does not take what it was answered."""


class Connection(H11Protocol):
    """Cuts clients that are slow on purpose, which uvicorn waits for without end."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        deadlines: Deadlines,
        keeper: Keeper,
    ) -> None:
        """Serve ``config``'s application."""
        super().__init__(config, state, {}, asyncio.get_running_loop())
        #: where the client is, see ``crowd``
        self.network = ""
        self.since = self.loop.time()
        #: agrees on TLS, if that is spoken
        self.greeting: asyncio.Task[None] | None = None
        self.logger = _log
        self._deadlines = deadlines
        self._keeper = keeper
        self._cut: asyncio.TimerHandle | None = None
        self._cut_deaf: asyncio.TimerHandle | None = None
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
        self._cut_in(self._deadlines.head_seconds)

    def data_received(self, data: bytes) -> None:
        """Take bytes; until they make a head, the deadline that began with the first of them stands."""
        super().data_received(data)
        if (
            len(self.conn.trailing_data[0]) > HEAD_BYTES
        ):  # asked ahead of the answers: nobody has to keep that
            self.transport.abort()
        elif self.conn.their_state in (h11.IDLE, h11.ERROR):
            if self._cut is None:
                self._cut_in(self._deadlines.head_seconds)
        elif not self.transport.is_closing():
            self._cut_never()

    def on_response_complete(self) -> None:
        """Give the client its time to take the answer."""
        self.since = self.loop.time()
        super().on_response_complete()
        if self.transport.is_closing():
            self._cut_in(self._deadlines.answer_seconds)

    def pause_writing(self) -> None:
        """Give a client that has let all buffers fill up its time to take some of it.

        uvicorn begins no further answer meanwhile, and would wait for ever; so no other deadline would come.
        """
        super().pause_writing()
        self._cut_deaf = self.loop.call_later(self._deadlines.answer_seconds, self.transport.abort)
        self._keeper.unread()

    def resume_writing(self) -> None:
        """Go on: there is room again."""
        super().resume_writing()
        self._hears()

    def timeout_keep_alive_handler(self) -> None:
        """End an idle connection; one that has not even taken its answer would never end politely."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's text names too little
        """Refuse what is not HTTP; uvicorn calls this while it handles h11's error, which has the status."""
        status = getattr(sys.exc_info()[1], "error_status_hint", 400)
        self._keeper.refused(status)
        if self._answering:
            self.cycle.disconnected = True  # what it still sends goes nowhere, without an error
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
        self._cut_never()
        self._hears()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self.transport.abort()  # lost by an error, Python 3.10's TLS transport would complain that it is open
        self._keeper.left(self)

    def finish(self) -> None:
        """End after the answer that is being given, at once if there is none."""
        if self._answering:
            self.cycle.keep_alive = False
        elif self.begun:
            self.transport.close()

    def abort(self) -> None:
        """End now."""
        if self._answering:
            self.cycle.disconnected = True
        if self.begun:
            self.transport.abort()

    def make_room(self) -> None:
        """End now, for somebody who may have better manners; also amid the handshake."""
        if self.begun:
            self.transport.abort()
        elif self.greeting is not None:
            self.greeting.cancel()

    @property
    def waits_for_client(self) -> bool:
        """Whether it is the client's turn: to agree on TLS, to ask, or to take what was answered."""
        return not self._answering or self._cut_deaf is not None

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

    def _cut_in(self, seconds: float) -> None:
        self._cut_never()
        self._cut = self.loop.call_later(seconds, self.transport.abort)

    def _cut_never(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None

    def _hears(self) -> None:
        if self._cut_deaf is not None:
            self._cut_deaf.cancel()
            self._cut_deaf = None
