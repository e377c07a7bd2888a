"""What must never be lost: transitions, and what is still to be handed to a channel.

Truth is in memory and follows to disk at once: alerts go out while the disk is full, and what was not yet
sent is found again after a restart. A delivery is marked only after its channel has taken it, so each is
handed over at least once.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, select, update

from wslgpud import documents
from wslgpud.model import Forecast, Level, Transition
from wslgpud.store import schema
from wslgpud.store.backlog import Backlog
from wslgpud.store.damage import gap
from wslgpud.store.records import Delivery
from wslgpud.store.sql import insert_new
from wslgpud.words import Said, from_json, from_text, to_json, to_text

Write = Callable[[Connection], object]

#: statements that may wait for a database; a transition and its deliveries are a handful of them
MAX_WAITING = 20_000
#: deliveries that are taken over from an earlier run, the newest; as many wait for ten channels that are down
MOST_LOADED = 5000


def _forecast_payload(forecast: Forecast) -> dict[str, Any]:
    probabilities = {str(horizon): p for horizon, p in forecast.probabilities.items()}
    fields = {name: getattr(forecast, name) for name in Forecast.__slots__}
    return fields | {
        "level": forecast.level.label,
        "probabilities": probabilities,
        "who": to_json(forecast.who),
    }


def forecast_from(payload: Mapping[str, Any]) -> Forecast:
    """Return a forecast from its row; fields of other versions are ignored."""
    known = {name: value for name, value in payload.items() if name in Forecast.__slots__}
    probabilities = {int(h): p for h, p in dict(known.get("probabilities") or {}).items()}
    return Forecast(
        **known
        | {
            "level": Level[known["level"].upper()],
            "probabilities": probabilities,
            "who": from_json(known.get("who", "")),
        }
    )


class Journal:
    """Transitions and deliveries: in memory now, in the database as soon as it takes them."""

    def __init__(
        self, next_id: Callable[[], int], final_id: Callable[[int], int], wall: Callable[[], float]
    ) -> None:
        """Begin empty; ``next_id`` gives row ids, ``final_id`` what they are on disk, ``wall`` the time."""
        self._lock = threading.Lock()
        self._next_id, self._final_id = next_id, final_id
        self._wall = wall
        self._unsent: dict[int, Delivery] = {}
        self._writes: Backlog[Write] = Backlog()
        self._loaded = False
        self.dropped_writes = 0

    def load(self, connection: Connection, first_id: int, last_id: int) -> None:
        """Remember the deliveries of our ids that no channel has taken yet."""
        box = schema.outbox
        query = select(box).where(box.c.done_ms.is_(None), box.c.id.between(first_id, last_id))
        query = query.order_by(box.c.id.desc()).limit(MOST_LOADED)
        if self._loaded:
            # what was sent meanwhile may still be waiting to be marked in the file
            return
        earlier: dict[int, Delivery] = {}
        for row in connection.execute(query).all()[::-1]:
            with gap("delivery %d", row.id):
                earlier[row.id] = Delivery(
                    row.id, row.channel, row.transition, documents.parsed(row.payload),
                    row.created_ms / 1000, row.attempts, from_text(row.error),
                )  # fmt: skip
        with self._lock:
            self._unsent = earlier | self._unsent
            self._loaded = True

    def record(self, transition: Transition, messages: Mapping[str, Mapping[str, Any]]) -> int:
        """Keep a transition and what each channel is to be told of it; return its id."""
        number, forecast, facts = self._next_id(), transition.forecast, to_json(transition.facts)
        row = {
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
        self.run(
            lambda connection: insert_new(
                connection, schema.transition, [{"id": self._final_id(number), **row}]
            )
        )
        for channel, message in messages.items():
            self.post(channel, message, number)
        return number

    def post(self, channel: str, payload: Mapping[str, Any], transition_id: int | None = None) -> int:
        """Keep something to be handed to ``channel``; return the delivery's id."""
        text = json.dumps(payload, ensure_ascii=False)
        delivery = Delivery(self._next_id(), channel, transition_id, json.loads(text), round(self._wall(), 3))
        row = {
            "channel": channel,
            "payload": text,
            "created_ms": round(delivery.created_wall * 1000),
            "attempts": 0,
            "error": "",
            "done_ms": None,
        }
        with self._lock:
            self._unsent[delivery.id] = delivery

        def write(connection: Connection) -> None:
            of = None if transition_id is None else self._final_id(transition_id)
            insert_new(
                connection, schema.outbox, [{"id": self._final_id(delivery.id), "transition": of, **row}]
            )

        self.run(write)
        return delivery.id

    def unsent(self, channel: str | None = None) -> list[Delivery]:
        """Return what waits, oldest first, for one channel or all."""
        with self._lock:
            return [d for d in self._unsent.values() if channel in (None, d.channel)]

    def sent(self, delivery_id: int) -> None:
        """Mark a delivery as taken by its channel (or given up for good)."""
        self._change(delivery_id, done=True, error="")

    def failed(self, delivery_id: int, error: Said) -> None:
        """Note an attempt that failed; the delivery goes on waiting."""
        self._change(delivery_id, done=False, error=error)

    def abandoned(self, delivery_id: int, error: Said) -> None:
        """Give a delivery up for good; the row keeps why."""
        self._change(delivery_id, done=True, error=error)

    def run(self, write: Write) -> None:
        """Have a small write done, in order with all others; of too many that wait the oldest is given up."""
        with self._lock:
            if len(self._writes) >= MAX_WAITING:
                self.dropped_writes += self._writes.give_up()[1]
            self._writes.put(write)

    def batch(self) -> list[Write]:
        """Return what waits to be written, without taking it away."""
        with self._lock:
            return list(self._writes)

    def committed(self, writes: Iterable[Write]) -> None:
        """Note which were committed; committed again they change nothing."""
        with self._lock:
            self._writes.committed(writes)

    def synced(self) -> None:
        """Forget what is committed: the disk has it."""
        with self._lock:
            self._writes.synced()

    def again(self) -> None:
        """Have everything committed again that the disk may not have."""
        with self._lock:
            self._writes.again()

    def _change(self, delivery_id: int, *, done: bool, error: Said) -> None:
        with self._lock:
            delivery = self._unsent.get(delivery_id)
            if delivery is None:
                return
            delivery = delivery._replace(attempts=delivery.attempts + 1, error=error)
            self._unsent[delivery_id] = delivery
            if done:
                del self._unsent[delivery_id]
        values = {
            "attempts": delivery.attempts,
            "error": to_text(error),
            "done_ms": round(self._wall() * 1000) if done else None,
        }
        box = schema.outbox
        self.run(
            lambda connection: connection.execute(
                update(box).where(box.c.id == self._final_id(delivery_id)).values(values)
            )
        )
