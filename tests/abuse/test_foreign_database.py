"""An SQLite file that somebody made to harm whoever looks into it: root's command line, say."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.store.made import BYTES, T0, snapshot
from wslgpud.store import Reader, Store, StoreError, engines, maintenance
from wslgpud.store.errors import ForeignDatabaseError, UnwritableError

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT"
COMMANDS = (("history", "ram", "--json"), ("db", "info"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a small history of ours."""
    file = tmp_path / "state" / "wslgpud.db"
    with Store(file, host_name="pc") as store:
        store.append(snapshot(T0, {(BYTES, "free"): 7}))
        assert store.flush()
    return file


def spoil(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


def run(file: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1", "HOME": str(file.parent)}
    return subprocess.run(
        [sys.executable, "-m", "wslgpud", *command, "--state", str(file.parent)],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
    )


IN_PLACE_OF_TABLES = {
    "series": f"CREATE VIEW series AS {ENDLESS} x AS id, 0 AS host, 'a' AS metric, 'gauge' AS kind,"
    " '{}' AS labels, 1 AS divisor FROM n",
    "schema_migration": f"CREATE VIEW schema_migration AS {ENDLESS} 1 AS version, '' AS name, x AS applied_ms FROM n",
    "transition": "CREATE VIEW transition AS SELECT zeroblob(1000000000) AS id",
    "event": "CREATE VIRTUAL TABLE event USING fts5(id, ms, kind, text, fields)",
    "host": "CREATE TABLE host (id INTEGER PRIMARY KEY, name TEXT AS (hex(zeroblob(900000000))))",
    "learned": "CREATE TABLE learned (id INTEGER PRIMARY KEY, ms, subject, document)",
}


@pytest.mark.parametrize("table", IN_PLACE_OF_TABLES)
def test_a_foreign_table_is_refused_before_a_row_is_read(file: Path, table: str) -> None:
    try:
        spoil(file, f"DROP TABLE {table}", IN_PLACE_OF_TABLES[table])
    except sqlite3.OperationalError as error:
        pytest.skip(f"this SQLite cannot make it: {error}")

    with pytest.raises(ForeignDatabaseError, match=f"'{table}' is not the table"):
        Reader(str(file))


def test_commands_of_such_a_file_end_with_one_line(file: Path) -> None:
    spoil(file, "DROP TABLE series", IN_PLACE_OF_TABLES["series"])
    for command in COMMANDS:
        done = run(file, *command)

        assert done.returncode == 2, (command, done)
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert "'series' is not the table" in done.stderr


def test_a_file_that_replaces_the_known_one_is_checked_too(file: Path, tmp_path: Path) -> None:
    with Reader(str(file)) as reader:
        assert reader.series()
        hostile = tmp_path / "hostile.db"
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(hostile)) as copy:
            source.backup(copy)
        spoil(hostile, "DROP TABLE series", IN_PLACE_OF_TABLES["series"])
        hostile.replace(file)

        with pytest.raises(ForeignDatabaseError):
            reader.series()


def test_views_and_triggers_of_the_owners_own_do_no_harm(file: Path) -> None:
    spoil(
        file,
        f"CREATE VIEW mine AS {ENDLESS} x FROM n",
        "CREATE TRIGGER t AFTER INSERT ON event BEGIN DELETE FROM series; END",
    )
    with Reader(str(file)) as reader:
        assert len(reader.series()) == 1


def test_a_reading_connection_neither_writes_nor_runs_code(file: Path) -> None:
    with Reader(str(file)) as reader, reader.connected() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("query_only", "trusted_schema", "cell_size_check")
        }
    assert pragmas == {"query_only": 1, "trusted_schema": 0, "cell_size_check": 1}


def test_a_statement_that_would_take_for_ever_is_ended(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that lie billions of years apart make the search for them endless, without any code."""
    monkeypatch.setattr(engines, "MAX_STEPS", 20_000_000)
    spoil(
        file,
        "INSERT INTO rollup_minute (part, series, unit, base, n_0) VALUES (0, 1, 1, 0, 1)",
        "INSERT INTO rollup_minute (part, series, unit, base, n_0) VALUES (1 << 60, 1, 1, 0, 1)",
    )
    with Reader(str(file)) as reader:
        (ref,) = reader.series()
        with pytest.raises(StoreError, match="takes too long"):
            reader.read(ref, 0, 1 << 59, 60)
        assert reader.latest(), "and the next one has all its time"


@pytest.mark.parametrize(("most", "ended"), [(2, True), (30, False)])
def test_a_statement_of_ours_has_time_enough(
    file: Path, monkeypatch: pytest.MonkeyPatch, most: int, ended: bool
) -> None:
    """A row of the query below takes about twelve steps."""
    monkeypatch.setattr(engines, "_STEPS_A_LOOK", 1000)
    monkeypatch.setattr(engines, "MAX_STEPS", most * 1000)
    count = ENDLESS.replace("FROM n)", "FROM n WHERE x < 1000)") + " count(*) FROM n"
    with Reader(str(file)) as reader:
        if ended:
            with pytest.raises(StoreError, match="takes too long"), reader.connected() as connection:
                connection.exec_driver_sql(count)
            return
        for _ in range(5):
            with reader.connected() as connection:
                assert connection.exec_driver_sql(count).scalar() == 1000


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the limit can be set since Python 3.11")
def test_a_row_of_gigabytes_is_not_read(file: Path) -> None:
    spoil(file, "INSERT INTO event VALUES (1, 7000, 'a', printf('%.*c', 100000000, 'x'), '{}')")
    with Reader(str(file)) as reader, pytest.raises(StoreError, match="too big"):
        reader.events(0, 10)


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_pipes_in_place_of_files_make_nobody_wait(file: Path, suffix: str) -> None:
    place = Path(f"{file}{suffix}")
    place.unlink(missing_ok=True)
    os.mkfifo(place)

    for act in (Reader, maintenance.compact):
        with pytest.raises(StoreError, match="not a plain file" if suffix else "no history here"):
            act(str(file))


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal", ".lock"])
@pytest.mark.parametrize("act", [Reader, maintenance.compact, Store])
def test_links_beside_the_file_lead_to_no_write(
    file: Path, tmp_path: Path, suffix: str, act: Callable[[str], Any]
) -> None:
    victim, place = tmp_path / "victim", Path(f"{file}{suffix}")
    victim.write_text("as it was")
    place.unlink(missing_ok=True)
    place.symlink_to(victim)

    with contextlib.suppress(StoreError), contextlib.closing(act(str(file))) as opened:
        opened.series()

    assert victim.read_text() == "as it was"


def test_a_link_in_place_of_the_lock_makes_no_file_elsewhere(file: Path, tmp_path: Path) -> None:
    lock, target = Path(f"{file}.lock"), tmp_path / "made by a link"
    lock.unlink()
    lock.symlink_to(target)

    with pytest.raises(UnwritableError, match=re.escape(str(lock))):
        Store(file, host_name="pc")
    assert not target.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, whose rights are what is to be gained")
def test_root_compacts_a_users_file_with_that_users_rights(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (file.parent, *file.parent.iterdir()):
        os.chown(path, 51234, 51234)
    file.parent.parent.chmod(0o755)
    for folder in file.parents:
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(0o755)
    seen = []
    real = maintenance.would_free

    def watched(target: str) -> maintenance.Compaction:
        seen.append((os.geteuid(), os.getegid(), os.getgroups()))
        return real(target)

    monkeypatch.setattr(maintenance, "would_free", watched)

    maintenance.compact(str(file))

    assert seen == [(51234, 51234, [])]
    assert os.geteuid() == 0
