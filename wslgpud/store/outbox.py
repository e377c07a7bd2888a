"""What must never be lost: transitions, and what is still to be handed to a channel.

Truth is in memory and follows to disk at once: alerts go out while the disk is full, and what was not yet
sent is found again after a restart. A delivery is marked only after its channel has taken it, so each is
handed over at least once.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, Row, select, update

from wslgpud.model import Forecast, Level, Transition
from wslgpud.security import safe_files
from wslgpud.store import schema
from wslgpud.store.errors import gap
from wslgpud.store.records import Delivery
from wslgpud.store.write_buffer import WriteBuffer
from wslgpud.words import Message, MessageLike, facts_from_json, from_json, from_text, to_json, to_text

#: deliveries that are taken over from an earlier run, the newest; as many wait for ten channels that are down
MOST_LOADED = 5000


class Outbox:
    """Transitions and deliveries: in memory now, in the database as soon as it takes them."""

    def __init__(self, buffer: WriteBuffer, wall: Callable[[], float], wake: Callable[[], None]) -> None:
        """``wake`` has what was put into ``buffer`` written and synced at once."""
        self._lock = threading.Lock()
        self._buffer, self._wall, self._wake = buffer, wall, wake
        self._unsent: dict[int, Delivery] = {}
        self._loaded = False

    def load(self, connection: Connection, first_id: int, last_id: int) -> None:
        """Remember the deliveries of our ids that no channel has taken yet."""
        if self._loaded:
            # what was sent meanwhile may still be waiting to be marked in the file
            return
        box = schema.outbox
        query = select(box).where(box.c.done_ms.is_(None), box.c.id.between(first_id, last_id))
        query = query.order_by(box.c.id.desc()).limit(MOST_LOADED)
        earlier: dict[int, Delivery] = {}
        for row in connection.execute(query).all()[::-1]:
            with gap("delivery %d", row.id):
                earlier[row.id] = delivery_of(row)
        with self._lock:
            self._unsent = earlier | self._unsent
            self._loaded = True

    def record(self, transition: Transition, messages: Mapping[str, Mapping[str, Any]]) -> int:
        """Keep a change of level and a message for each channel in ``messages``; return its id.

        It is written and synced at once, but nobody waits for that: under memory pressure the disk may
        take seconds, and the alert must be out by then.
        """
        number = self._buffer.insert(schema.transition, _row_of(transition))
        for channel, message in messages.items():
            self._queue(channel, message, number)
        self._wake()
        return number

    def post(self, channel: str, payload: Mapping[str, Any]) -> None:
        """Keep anything else to be handed to ``channel``."""
        self._queue(channel, payload)
        self._wake()

    def _queue(self, channel: str, payload: Mapping[str, Any], transition_id: int | None = None) -> None:
        text = json.dumps(payload, ensure_ascii=False)
        created_wall = round(self._wall(), 3)
        row = {"channel": channel, "payload": text, "created_ms": round(created_wall * 1000)}
        row |= {"attempts": 0, "error": "", "done_ms": None}
        with self._lock:
            number = self._buffer.insert(schema.outbox, row, transition=transition_id)
            self._unsent[number] = Delivery(number, channel, transition_id, json.loads(text), created_wall)

    def unsent(self, channel: str | None = None) -> list[Delivery]:
        """Return what waits, oldest first, for one channel or all."""
        with self._lock:
            return [d for d in self._unsent.values() if channel in (None, d.channel)]

    def tried(self, delivery_id: int, error: MessageLike = "", *, done: bool) -> None:
        """Note an attempt to hand a delivery over; it goes on waiting unless it is ``done`` with for good."""
        with self._lock:
            delivery = self._unsent.get(delivery_id)
            if delivery is None:
                return
            delivery = delivery._replace(attempts=delivery.attempts + 1, error=error)
            self._unsent[delivery_id] = delivery
            if done:
                del self._unsent[delivery_id]
        done_ms = round(self._wall() * 1000) if done else None
        values = {"attempts": delivery.attempts, "error": to_text(error), "done_ms": done_ms}
        mine = update(schema.outbox).values(values)
        final = self._buffer.final_row
        self._buffer.write(lambda on: on.execute(mine.where(schema.outbox.c.id == final(delivery_id))))
        if done:
            self._wake()


def _row_of(transition: Transition) -> dict[str, Any]:
    """Return a change of level as the columns of its row, without the id."""
    forecast, facts = transition.forecast, to_json(transition.facts)
    return {
        "ms": round(transition.wall * 1000),
        "mono": transition.mono,
        "resource": transition.resource,
        "rule": transition.rule,
        "old": int(transition.old),
        "new": int(transition.new),
        "message": json.dumps(to_json(transition.message), ensure_ascii=False),
        "forecast": None if forecast is None else json.dumps(_forecast_payload(forecast)),
        "facts": json.dumps(facts, ensure_ascii=False) if facts else None,
    }


def delivery_of(row: Row[Any]) -> Delivery:
    """Return the delivery of a row; one that is damaged ends in any of ``errors.DAMAGE``."""
    payload, error = safe_files.parsed(row.payload), from_text(row.error)
    made, done = row.created_ms / 1000, None if row.done_ms is None else row.done_ms / 1000
    return Delivery(row.id, row.channel, row.transition, payload, made, row.attempts, error, done)


def transition_of(row: Row[Any]) -> Transition:
    """Return the change of level of a row; one that is damaged ends in any of ``errors.DAMAGE``."""
    said = from_json(safe_files.parsed(row.message))
    return Transition(
        row.ms / 1000,
        row.mono,
        row.resource,
        row.rule,
        Level(row.old),
        Level(row.new),
        Message(said) if isinstance(said, str) else said,
        None if row.forecast is None else _forecast_from(safe_files.parsed(row.forecast)),
        facts_from_json(safe_files.parsed(row.facts or "{}")),
    )


def _forecast_payload(forecast: Forecast) -> dict[str, Any]:
    probabilities = {str(horizon): p for horizon, p in forecast.probabilities.items()}
    fields = {name: getattr(forecast, name) for name in Forecast.__slots__}
    return fields | {"level": forecast.level.label, "probabilities": probabilities, "who": to_json(forecast.who)}


def _forecast_from(payload: Mapping[str, Any]) -> Forecast:
    known = {name: value for name, value in payload.items() if name in Forecast.__slots__}
    converted = {
        "level": Level[known["level"].upper()],
        "probabilities": {int(h): p for h, p in dict(known.get("probabilities") or {}).items()},
        "who": from_json(known.get("who", "")),
    }
    return Forecast(**known | converted)
