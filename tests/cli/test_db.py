"""``wslgpud db``: the size of the history as people read it, and where a backup goes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from wslgpud.cli import app
from wslgpud.cli.db import _readable
from wslgpud.config import StoreSettings
from wslgpud.store import Store

GIB, MIB = 1 << 30, 1 << 20
KNOWN: dict[str, Any] = {
    "database": "/var/lib/wslgpud/wslgpud.db",
    "schema": 9,
    "hosts": ["pc", "server"],
    "series": 512,
    "samples": 12_345_678,
    "bytes_a_sample": 1.234,
    "bytes_a_day": 20 * MIB,
    "size_bytes": {"file": GIB, "log": 4 * MIB, "free inside": 8 * MIB},
    "tiers_bytes": {"samples": 700 * MIB, "minutes": 90 * MIB},
    "samples_since": "2026-10-21T12:00:30+00:00",
    "minutes_since": "2026-01-01T00:00:00+00:00",
    "hours_since": None,
    "newest": "2026-11-20T12:00:00+00:00",
    "keep": {"raw_days": 30, "minute_days": 400, "hour_days": 3650, "max_bytes": 4 * GIB},
    "set_aside": ["/wslgpud.db.damaged"],
}


def test_the_size_of_a_history_is_shown_with_age_and_retention() -> None:
    assert list(_readable(KNOWN)) == [
        "/var/lib/wslgpud/wslgpud.db: schema 9, 512 series of pc, server",
        "  size               1.0 of 4.0 GiB at most",
        "  write-ahead log    4 MiB",
        "  free inside        8 MiB",
        "  samples            12,345,678 at 1.23 bytes, blocks and index",
        "  samples per day    20 MiB; 30 days take 600 MiB",
        "",
        "  samples since      2026-10-21 12:00, kept for 30 days",
        "  minutes since      2026-01-01 00:00, kept for 400 days",
        "  hours since        nothing yet, kept for 3650 days",
        "  newest             2026-11-20 12:00",
        "",
        "  samples             700 MiB",
        "  minutes              90 MiB",
        "\nset aside because it was damaged; delete it when it is no longer needed: /wslgpud.db.damaged",
    ]


def test_of_an_empty_history_only_what_there_is_is_shown() -> None:
    nothing: dict[str, Any] = {"bytes_a_sample": None, "bytes_a_day": None, "set_aside": [], "tiers_bytes": {}}
    lines = list(_readable({**KNOWN, **nothing, "size_bytes": {"file": 4096, "log": 0, "free inside": 0}}))

    assert [line[2:19].rstrip() for line in lines] == [
        "ar/lib/wslgpud/ws",
        "size",
        "free inside",
        "",
        "samples since",
        "minutes since",
        "hours since",
        "newest",
        "",
    ]


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
