"""The outbox: changes of level, and messages until their channels accept them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, select, update

from wslgpud.model import Transition
from wslgpud.store import schema
from wslgpud.store.errors import gap
from wslgpud.store.records import Delivery, delivery_of, transition_row
from wslgpud.store.writer import WriteBuffer
from wslgpud.words import MessageLike, to_text

#: deliveries taken over from an earlier run, the newest: those queued for ten channels that are down
MAX_LOADED = 5000


class Outbox:
    """Data that must never be lost: transitions, and queued messages.

    Memory is authoritative and follows to disk at once: alerts go out even while the disk is full, and unsent ones are
    found again after a restart. A delivery is marked only after its channel has accepted it, so each is sent at least
    once.
    """

    def __init__(self, buffer: WriteBuffer, wall: Callable[[], float], wake: Callable[[], None]) -> None:
        """``wake`` makes the content of ``buffer`` be written and synced at once."""
        self._lock = threading.Lock()
        self._buffer, self._wall, self._wake = buffer, wall, wake
        self._unsent: dict[int, Delivery] = {}
        self._loaded = False

    def load(self, connection: Connection) -> None:
        """Load the deliveries that no channel has accepted yet."""
        if self._loaded:
            # deliveries sent meanwhile may not be marked in the file yet
            return
        box = schema.outbox
        query = select(box).where(box.c.done_ms.is_(None)).order_by(box.c.id.desc()).limit(MAX_LOADED)
        earlier: dict[int, Delivery] = {}
        for row in connection.execute(query).all()[::-1]:
            with gap("delivery %d", row.id):
                earlier[row.id] = delivery_of(row)
        with self._lock:
            self._unsent = earlier | self._unsent
            self._loaded = True

    def record(self, transition: Transition, messages: Mapping[str, Mapping[str, Any]]) -> int:
        """Store a change of level and a message for each channel in ``messages``; return its id.

        It is written and synced at once, without blocking: under memory pressure the disk may take seconds, and the
        alert must be out by then.
        """
        number = self._buffer.insert(schema.transition, transition_row(transition))
        for channel, message in messages.items():
            self._queue(channel, message, number)
        self._wake()
        return number

    def post(self, channel: str, payload: Mapping[str, Any]) -> None:
        """Queue another message for ``channel``."""
        self._queue(channel, payload)
        self._wake()

    def _queue(self, channel: str, payload: Mapping[str, Any], transition_id: int | None = None) -> None:
        text = json.dumps(payload, ensure_ascii=False)
        created_ms = round(self._wall() * 1000)
        row = {"channel": channel, "transition": transition_id, "payload": text, "created_ms": created_ms}
        with self._lock:
            number = self._buffer.insert(schema.outbox, row | {"attempts": 0, "error": "", "done_ms": None})
            self._unsent[number] = Delivery(number, channel, transition_id, json.loads(text), created_ms / 1000)

    def unsent(self, channel: str | None = None) -> list[Delivery]:
        """Return the queued deliveries, oldest first, for one channel or all."""
        with self._lock:
            return [d for d in self._unsent.values() if channel in (None, d.channel)]

    def tried(self, delivery_id: int, error: MessageLike = "", *, done: bool) -> None:
        """Record an attempt at a delivery; it stays queued unless it is finally ``done``."""
        with self._lock:
            delivery = self._unsent.get(delivery_id)
            if delivery is None:
                return
            delivery = delivery._replace(attempts=delivery.attempts + 1, error=error)
            self._unsent[delivery_id] = delivery
            if done:
                del self._unsent[delivery_id]
        done_ms = round(self._wall() * 1000) if done else None
        tried = update(schema.outbox).where(schema.outbox.c.id == delivery_id)
        tried = tried.values(attempts=delivery.attempts, error=to_text(error), done_ms=done_ms)
        self._buffer.later(lambda connection: connection.execute(tried))
        if done:
            self._wake()
