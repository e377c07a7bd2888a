"""TimescaleDB, where the administrator of a PostgreSQL database has put it there: summaries as hypertables.

Minutes and hours are rows by time, so a query touches the chunks of its time alone, and policies of the
administrator's (columnstore, tiering) work on them. Every sample stays in blocks, which are stretches of time
already and smaller than a column store makes them.
"""

from __future__ import annotations

import logging

from sqlalchemy import Connection, bindparam, text

from wslgpud.store import schema
from wslgpud.store.tiers import DAY

log = logging.getLogger(__name__)

#: seconds of a table that share a chunk: a month and five years
CHUNK_SECONDS = {schema.rollup_minute: 30 * DAY, schema.rollup_hour: 3650 * DAY // 2}

_THERE = text("SELECT count(*) FROM pg_extension WHERE extname = 'timescaledb'")
_MADE = text(
    "SELECT hypertable_name FROM timescaledb_information.hypertables"
    " WHERE hypertable_schema = current_schema()"
)
_MAKE = text(
    "SELECT create_hypertable(CAST(:name AS regclass), 'part',"
    " chunk_time_interval => CAST(:seconds AS bigint),"
    " create_default_indexes => FALSE, if_not_exists => TRUE, migrate_data => TRUE)"
).bindparams(bindparam("name"), bindparam("seconds"))


def make_hypertables(connection: Connection) -> None:
    """Turn the tables of summaries into hypertables if the extension is in this database; rows stay.

    Within the transaction of the caller. The extension may come after the tables did.
    """
    if connection.dialect.name != "postgresql" or not connection.scalar(_THERE):
        return
    made = set(connection.scalars(_MADE))
    for table, seconds in CHUNK_SECONDS.items():
        if table.name not in made:
            connection.execute(_MAKE, {"name": table.name, "seconds": seconds})
            log.info("%s is a hypertable of TimescaleDB now", table.name)
