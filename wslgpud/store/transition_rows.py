"""Changes of level as rows are read. An ordinary user can add thousands a day, so they come one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, Select, inspect, null
from sqlalchemy import select as selecting

from wslgpud import documents
from wslgpud.model import Level, Transition
from wslgpud.store import schema
from wslgpud.store.damage import gap
from wslgpud.store.journal import forecast_from
from wslgpud.words import Fact, Message, facts_from_json, from_json

_NOTHING: Mapping[str, Fact] = MappingProxyType({})
_DOCUMENTS = ("forecast", "facts")


def query(connection: Connection, ours: schema.Ours, *, brief: bool = False) -> Select[Any]:
    """Return the query for all of one machine, with ``brief`` without the two documents of each."""
    table = schema.transition
    # A file that an older version wrote, and still writes, lacks the newest column.
    there = {column["name"] for column in inspect(connection).get_columns(table.name)}
    there -= set(_DOCUMENTS) if brief else set()
    columns = [c if c.name in there else null().label(c.name) for c in table.columns]
    return selecting(*columns).where(ours(connection, table))


def read(connection: Connection, chosen: Select[Any]) -> Iterator[tuple[int, Transition]]:
    """Yield the changes of level that a query finds, with their ids; a damaged row is left out."""
    options = {"stream_results": True, "max_row_buffer": 500}
    with connection.execute(chosen, execution_options=options) as found:
        for number, ms, mono, resource, rule, old, new, message, forecast, facts in found:
            with gap("transition %d", number):
                yield (
                    number,
                    Transition(
                        ms / 1000, mono, resource, rule, Level(old), Level(new), _message(message),
                        None if forecast is None else forecast_from(documents.parsed(forecast)),
                        facts_from_json(documents.parsed(facts)) if facts else _NOTHING,
                    ),
                )  # fmt: skip


def _message(column: str) -> Message:
    said = from_json(documents.parsed(column))
    return Message(said) if isinstance(said, str) else said
