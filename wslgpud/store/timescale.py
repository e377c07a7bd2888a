"""TimescaleDB, where the administrator of a PostgreSQL database has put it there: summaries as hypertables.

Minutes and hours are rows by time, so a query touches the chunks of its time alone, and policies of the
administrator's (columnstore, tiering) work on them. Every sample stays in blocks, which are stretches of time
already and smaller than a column store makes them.
"""

from __future__ import annotations

import logging

from sqlalchemy import Connection, text

from wslgpud.store import schema
from wslgpud.store.tiers import DAY

log = logging.getLogger(__name__)

#: seconds of a table that share a chunk: a month and five years
CHUNK_SECONDS = {schema.rollup_minute: 30 * DAY, schema.rollup_hour: 3650 * DAY // 2}

#: the schema that the extension lies in
_THERE = text(
    "SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
    " WHERE e.extname = 'timescaledb'"
)
_MADE = text(
    "SELECT hypertable_name FROM timescaledb_information.hypertables"
    " WHERE hypertable_schema = current_schema()"
)
_MAKE = (
    "SELECT {}.create_hypertable(CAST(:name AS regclass), 'part',"
    " chunk_time_interval => CAST(:seconds AS bigint),"
    " create_default_indexes => FALSE, if_not_exists => TRUE, migrate_data => TRUE)"
)


def make_hypertables(connection: Connection) -> None:
    """Turn the tables of summaries into hypertables if the extension is in this database; rows stay.

    Within the transaction of the caller. The extension may come after the tables did.
    """
    lies_in = connection.scalar(_THERE) if connection.dialect.name == "postgresql" else None
    if lies_in is None:
        return
    make = text(_MAKE.format(lies_in))
    made = set(connection.scalars(_MADE))
    for table, seconds in CHUNK_SECONDS.items():
        if table.name not in made:
            connection.execute(make, {"name": table.name, "seconds": seconds})
            log.info("%s is a hypertable of TimescaleDB now", table.name)
