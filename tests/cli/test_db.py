"""``wslgpud db``: the size of the history as people read it, and where a backup goes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from wslgpud.cli import app
from wslgpud.config import StoreSettings
from wslgpud.store import Store
from wslgpud.store.maintenance import Info
from wslgpud.store.records import Oldest

GIB, MIB = 1 << 30, 1 << 20
NOON = datetime(2026, 11, 20, 12, 0).timestamp()
KNOWN = Info(
    version=9,
    hosts=("pc", "server"),
    series=512,
    file_bytes=GIB,
    wal_bytes=4 * MIB,
    free_bytes=8 * MIB,
    tiers={"sealed": 600 * MIB, "newest": 0},
    samples=600 * MIB // 2,
    oldest=Oldest(NOON - 30 * 86400, NOON - 300 * 86400, None),
    newest_wall=NOON,
    set_aside=(Path("/wslgpud.db.damaged"),),
)


def shown(measured: Info, state: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("wslgpud.store.maintenance.info", lambda _: measured)
    return [line.rstrip() for line in db(state, "info").output.splitlines()]


def test_the_size_of_a_history_is_shown_with_age_and_retention(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head, *rows, gap, aside = shown(KNOWN, state, monkeypatch)

    assert head == f"{state / 'wslgpud.db'}: schema 9, 512 series of pc, server"
    assert [re.sub(r" {2,}", "|", row) for row in rows] == [
        "|size|1.0 of 1.9 GiB at most",
        "|write-ahead log|4 MiB",
        "|free inside|8 MiB",
        "|samples|314,572,800 at 2.00 bytes, blocks and index",
        "|samples per day|20 MiB; 30 days take 600 MiB",
        "|samples since|2026-10-21 12:00, kept for 30 days",
        "|minutes since|2026-01-24 12:00, kept for 366 days",
        "|hours since|nothing yet, kept for 3660 days",
        "|newest|2026-11-20 12:00",
        "|samples, sealed|600 MiB",
        "|samples, newest|0 KiB",
    ]
    assert (gap, aside.rpartition(": ")[2]) == ("", "/wslgpud.db.damaged")


def test_of_an_empty_history_only_what_there_is_is_shown(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = replace(KNOWN, wal_bytes=0, tiers={}, samples=0, oldest=Oldest(), newest_wall=None, set_aside=())
    _, *rows = shown(nothing, state, monkeypatch)

    names = ["size", "free inside", "samples since", "minutes since", "hours since", "newest"]
    assert [row.strip().partition("  ")[0] for row in rows] == names


@pytest.fixture
def state(tmp_path: Path) -> Path:
    Store(tmp_path / "wslgpud.db", StoreSettings()).close()
    return tmp_path


def db(state: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["db", *words, "--state", str(state)])


def test_a_backup_into_a_folder_is_named_after_the_day(state: Path) -> None:
    folder = state / "backup"
    folder.mkdir()
    first = db(state, "backup", str(folder))
    (copy,) = folder.iterdir()

    assert first.output.startswith(f"{copy}: ")
    assert re.fullmatch(r"wslgpud-\d{4}-\d{2}-\d{2}\.db", copy.name)
    again = db(state, "backup", str(copy))
    assert (again.exit_code, "(--force replaces it)" in str(again.exception) + again.output) == (2, True)
    assert db(state, "backup", str(copy), "--force").exit_code == 0


def test_a_sound_history_has_no_findings_and_exit_status_0(state: Path) -> None:
    assert db(state, "check").output == f"{state / 'wslgpud.db'}: nothing wrong\n"
    found = db(state, "check", "--json")
    assert (found.exit_code, json.loads(found.stdout)["findings"]) == (0, [])
    assert json.loads(db(state, "info", "--json").stdout)["samples_since"] is None
