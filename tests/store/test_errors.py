"""An error of the database is one line with its file and the remedy."""

from __future__ import annotations

import os
import sqlite3

import pytest
from sqlalchemy.exc import DBAPIError

from wslgpud.store import errors
from wslgpud.store.errors import DamagedError, LockedError, NotADatabaseError, StoreError, UnwritableError, explain

FULL = "free some space or name another folder in store.path"
OWNER = "check the owner of the file and of its folder"


@pytest.mark.parametrize(
    ("said", "kind", "told"),
    [
        ("file is not a database", NotADatabaseError, "is not a database; move the file away or name another one"),
        (
            "database disk image is malformed",
            DamagedError,
            "is damaged (database disk image is malformed); the daemon sets it aside and recovers what is readable",
        ),
        ("database is locked", LockedError, "held by another process (database is locked); close that one"),
        ("database or disk is full", StoreError, f"database or disk is full; {FULL}"),
        ("attempt to write a readonly database", UnwritableError, f"attempt to write a readonly database; {OWNER}"),
        ("unable to open database file", UnwritableError, f"unable to open database file; {OWNER}"),
        ("interrupted", StoreError, "interrupted; reading it takes too long; it is damaged, or malicious"),
        ("no such table:\n  x", StoreError, "no such table: x"),
    ],
)
def test_each_error_has_its_remedy(said, kind, told):
    error = explain(sqlite3.OperationalError(said), "/none/h.db")

    assert type(error) is kind
    assert str(error) == f"/none/h.db: {told}"


@pytest.mark.parametrize(
    ("code", "kind"),
    [(267, DamagedError), (26, NotADatabaseError), (6, LockedError), (517, LockedError), (1544, UnwritableError)],
)
def test_the_code_of_an_error_counts_rather_than_its_text(code, kind):
    said = sqlite3.OperationalError("database disk image is malformed, or locked")
    said.sqlite_errorcode = code

    assert type(explain(said, "/none/h.db")) is kind


def test_what_a_server_says_is_not_taken_for_a_code_of_sqlite():
    said = DBAPIError("SELECT 1", {}, Exception("malformed array literal: database is locked"))

    assert type(explain(said, "postgresql://host/history")) is StoreError


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
@pytest.mark.parametrize("closed", ["file", "folder"])
def test_who_may_not_read_the_file_is_told_how_to(tmp_path, closed):
    file = tmp_path / "closed" / "h.db"
    file.parent.mkdir()
    file.touch()
    shut = file if closed == "file" else file.parent
    shut.chmod(0)
    error = explain(sqlite3.OperationalError("unable to open database file"), str(file))
    shut.chmod(0o700)

    assert "you may not read it: use sudo" in str(error)


def test_a_password_of_a_server_is_not_told():
    error = explain(sqlite3.OperationalError('"geheim" is wrong'), "postgresql://me:geheim@host/history")

    assert "geheim" not in str(error)
    assert str(error).startswith("postgresql://host/history: ")


def test_damage_is_logged_once_and_what_is_no_damage_is_raised(caplog):
    for why in ("first", "first", "second"):
        with errors.gap("row %d of this test", 7):
            raise ValueError(why)
    with pytest.raises(OSError, match="no damage"), errors.gap("row"):
        raise OSError("no damage")

    assert caplog.messages == [f"row 7 of this test: damaged: {why}" for why in ("first", "second")]
