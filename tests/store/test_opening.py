"""Unsuitable files and folders get one line with the remedy."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from wslgpud.store import Reader, Store, StoreError, engines, schema
from wslgpud.store.engines import check_state_folder, lock_path, sqlite_path, writer_engine
from wslgpud.store.errors import NewerSchemaError, NotADatabaseError, UnwritableError
from wslgpud.store.maintenance import audit

from . import made

SCHEMAS = Path(__file__).parents[1] / "schemas"
VERSIONS = range(1, schema.VERSION + 1)

WSL_MOUNTS = """\
proc /proc proc rw,nosuid 0 0
/dev/sdc / ext4 rw,discard,errors=remount-ro 0 0
drvfs /mnt/c 9p rw,noatime,dirsync,aname=drvfs;path=C:\\134;uid=1000 0 0
drvfsaD /mnt/my\\040disk virtiofs rw 0 0
none /run tmpfs rw 0 0
"""


@pytest.mark.parametrize("folder", ["/mnt/c", "/mnt/c/Users/me/state", "/mnt/my disk/x"])
def test_a_folder_of_windows_is_refused(folder):
    with pytest.raises(UnwritableError, match=r"choose a folder of Linux"):
        check_state_folder(Path(folder), WSL_MOUNTS)


@pytest.mark.parametrize(("folder", "warned"), [("/var/lib/wslgpud", False), ("/mnt/cx", False), ("/run/x", True)])
def test_a_folder_of_linux_is_fine_unless_it_lies_in_memory(folder, warned):
    assert bool(check_state_folder(Path(folder), WSL_MOUNTS)) is warned


def test_this_machine_s_own_mounts_can_be_read(tmp_path):
    assert isinstance(check_state_folder(tmp_path), str)


def test_a_file_that_is_no_database_is_left_alone(file, settings):
    file.parent.mkdir()
    file.write_bytes(b"Dear diary, " * 1000)
    with pytest.raises(NotADatabaseError, match=r"wslgpud\.db: is not a database"):
        Store(file, settings)
    assert file.read_bytes().startswith(b"Dear diary")


def test_another_program_s_database_is_left_alone(file, settings):
    file.parent.mkdir()
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("CREATE TABLE places (url TEXT)")
    with pytest.raises(NotADatabaseError, match="belongs to another program"):
        Store(file, settings)
    with closing(sqlite3.connect(file)) as other:
        tables = other.execute("SELECT name FROM sqlite_master").fetchall()
    assert tables == [("places",)]


def test_a_folder_in_place_of_the_file_is_named(file, settings):
    file.mkdir(parents=True)
    with pytest.raises(NotADatabaseError, match="is a folder"):
        Store(file, settings)


def test_a_file_in_place_of_the_folder_is_named(file, settings):
    file.parent.write_text("")
    with pytest.raises(UnwritableError, match=r"state.*store\.path"):
        Store(file, settings)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_named(file, settings):
    file.parent.mkdir(mode=0o500)
    with pytest.raises(UnwritableError, match="make the folder writable"):
        Store(file, settings)


def test_reading_a_history_that_is_not_there_says_so(file):
    with pytest.raises(StoreError, match="no history here yet"):
        Reader(str(file))


def test_an_empty_file_is_no_history_yet(file):
    file.parent.mkdir()
    file.touch()
    with pytest.raises(StoreError, match="no history here yet"):
        Reader(str(file))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as somebody else")
def test_who_may_not_enter_the_folder_is_told_what_to_do(file, settings):
    Store(file, settings).close()
    os.seteuid(51234)
    try:
        with pytest.raises(UnwritableError, match="you may not read it: use sudo"):
            Reader(str(file))
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("address", ["://", "postgresql://me:geheim@host:port/history"])
def test_a_malformed_address_of_a_server_is_told_without_secrets(address, settings):
    for open_it in (lambda: Store(address, settings), lambda: Reader(address)):
        with pytest.raises(StoreError, match="is not the address of a database; write a path") as told:
            open_it()
        assert "geheim" not in str(told.value)


def test_a_file_from_a_newer_version_is_refused_and_left_alone(file, settings):
    Store(file, settings).close()
    with closing(sqlite3.connect(file)) as newer, newer:
        newer.execute("INSERT INTO schema_migration VALUES (99, 'of the future', 0)")
        newer.execute("ALTER TABLE event ADD COLUMN colour TEXT")
    before = file.read_bytes()
    for open_it in (lambda: Store(file, settings), lambda: Reader(str(file))):
        with pytest.raises(NewerSchemaError, match=r"schema 99, this one knows \d+\); update wslgpud"):
            open_it()
    assert file.read_bytes() == before


def test_the_file_can_shrink_and_is_known_as_ours(file, settings):
    Store(file, settings).close()
    with closing(sqlite3.connect(file)) as database:
        assert database.execute("PRAGMA auto_vacuum").fetchone() == (2,)
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert database.execute("PRAGMA application_id").fetchone() == (0x57475055,)


def test_the_lock_is_its_owner_s_alone(file, settings):
    before = os.umask(0)
    try:
        Store(file, settings).close()
    finally:
        os.umask(before)
    assert lock_path(file).stat().st_mode & 0o7777 == 0o600


def _shape(database):
    rows = database.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
    return [(kind, name, " ".join(sql.split())) for kind, name, sql in rows]


def _open_dump(file, version):
    file.parent.mkdir()
    with closing(sqlite3.connect(file)) as old, old:
        old.executescript((SCHEMAS / f"v{version}.sql").read_text())
        return old.execute("SELECT * FROM transition").fetchall()


@pytest.mark.parametrize("version", VERSIONS)
def test_every_released_schema_is_migrated_and_keeps_its_rows(version, file, settings, tmp_path):
    """A new SQLAlchemy that spells tables otherwise would have readers refuse every history: this one fails first."""
    transitions = _open_dump(file, version)
    assert transitions
    with Store(file, settings, host_name="pc") as store:
        assert store.reader.read(*store.reader.series("made_ratio"), 0, 1e10)
    Store(tmp_path / "fresh.db", settings).close()
    with closing(sqlite3.connect(file)) as migrated, closing(sqlite3.connect(tmp_path / "fresh.db")) as fresh:
        assert _shape(migrated) == _shape(fresh)
        kept = migrated.execute("SELECT * FROM transition").fetchall()
        assert [row[: len(transitions[0])] for row in kept] == transitions


def _sealed_as_it_was(read_all):
    """Compare every sample and every minute of a frozen history with its input."""
    for name, key in [
        ('*"sealed"*', (made.BYTES, "sealed")),
        ('*"still"*', (made.BYTES, "still")),
        ("made_ratio", made.RATIO),
        ("made_events", made.EVENTS),
    ]:
        values = {second: made.sealed_values(second) for second in made.SEALED_SECONDS}
        known = {second: of[key] for second, of in values.items() if key in of}
        end = made.SEALED_FROM + 899
        (ref,) = read_all.series(name)
        assert read_all.read(ref, made.SEALED_FROM, end) == [
            (made.SEALED_FROM + second, value) for second, value in known.items()
        ]
        minutes = {s // 60 * 60: [v for t, v in known.items() if t // 60 == s // 60] for s in known}
        assert [(b.wall, b.n, b.low, b.high, b.last) for b in read_all.summaries(ref, made.SEALED_FROM, end, 60)] == [
            (made.SEALED_FROM + m, len(v), min(v), max(v), v[-1]) for m, v in minutes.items()
        ]
        rows = made.query(
            read_all.path,
            "SELECT time, n, min, max, sum, last FROM minute WHERE metric = :metric"
            " AND labels = :labels AND time < :end ORDER BY time",
            metric=ref.metric,
            labels=json.dumps(dict(ref.labels), separators=(",", ":")),
            end=end,
        )
        assert rows == [
            (made.SEALED_FROM + m, len(v), min(v), max(v), pytest.approx(sum(v)), v[-1]) for m, v in minutes.items()
        ]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_an_older_version_sealed_stays_what_it_was(version, file, settings):
    _open_dump(file, version)
    Store(file, settings, host_name="pc").close()
    with Reader(str(file)) as reader:
        _sealed_as_it_was(reader)
        ((_, row),) = reader.transitions()
        assert str(row.message) == "RAM full in 2 s"
        assert audit(reader, lambda *_: None) == []


def test_every_version_has_a_frozen_dump():
    assert {p.stem for p in SCHEMAS.glob("v*.sql")} == {f"v{version}" for version in VERSIONS}


def test_a_creation_that_fails_half_way_leaves_no_trace(tmp_path):
    engine = writer_engine(tmp_path / "x.db")
    with engine.connect() as connection, pytest.raises(Exception, match="already exists"), connection.begin():
        engines.create(connection, "x", {"good": "SELECT 1", "series": "SELECT 2"})
    with engine.connect() as connection, connection.begin():
        assert engines.version_of(connection, "x") == 0
        assert connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar() == 0
        engines.create(connection, "x")
        assert engines.version_of(connection, "x") == schema.VERSION


def test_a_url_and_a_path_mean_the_same_file(tmp_path):
    assert sqlite_path(f"sqlite:///{tmp_path}/a.db") == tmp_path / "a.db"
    assert sqlite_path("postgresql+psycopg://me@db/x") is None
