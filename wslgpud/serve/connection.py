"""One HTTP/1.1 connection: uvicorn's, with the deadlines it lacks and without its log lines."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from wslgpud.serve.http import HEAD_BYTES, refusal, response_headers

if TYPE_CHECKING:
    from wslgpud.serve.listener import Listener

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


class Connection(H11Protocol):
    """Disconnects clients that are slow on purpose, for which uvicorn would wait forever."""

    def __init__(self, config: uvicorn.Config, state: ServerState, deadlines: Deadlines, listener: Listener) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        #: where the client is, see ``hosts.network_of``
        self.network = ""
        self.since = self.loop.time()
        #: agrees on TLS, if that is spoken
        self.greeting: asyncio.Task[None] | None = None
        self.logger = _log
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
        self._abort_in(self._deadlines.answer_seconds, "deaf")
        self._listener.unread()

    def resume_writing(self) -> None:
        """Go on: there is room again."""
        super().resume_writing()
        self._abort_in(None, "deaf")

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; one that has not even read its response would never close by itself."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, _msg: str) -> None:
        """Refuse what is not HTTP; uvicorn calls this while it handles h11's error, which has the status."""
        status = getattr(sys.exc_info()[1], "error_status_hint", 400)
        self._listener.refused(status)
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
        self._abort_in(None, "deaf")
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
        elif self.greeting is not None:
            self.greeting.cancel()

    @property
    def waits_for_client(self) -> bool:
        """Whether it is the client's turn: to agree on TLS, to ask, or to take what was answered."""
        return not self._answering or "deaf" in self._deadline_of

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
