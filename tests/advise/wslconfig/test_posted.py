"""Files as people have them: the settings that WSL takes of each, and our remarks on its lines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from wslgpud.advise.wslconfig.check import remarks
from wslgpud.probes.wsl_config import FILES, parse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

POSTED = tomllib.loads(Path(__file__).with_name("posted.toml").read_text("utf-8"))["posted"]
NAMED = {file.name: file for file in FILES}


@pytest.mark.parametrize("posted", POSTED, ids=lambda posted: f"{posted['file']} of {posted['thread']}")
def test_a_posted_file_is_read_as_wsl_reads_it(posted: dict[str, Any]) -> None:
    parsed = parse(posted["text"], posted["file"], NAMED[posted["file"]])

    in_force = {entry.key.path: entry.result for entry in parsed.entries if entry.key and entry.state == "used"}
    assert in_force == posted.get("in_force", {})
    assert [[remark.line, str(remark.fix)] for remark in remarks(parsed)] == posted.get("fixes", [])


def test_each_file_was_posted_once_and_somewhere() -> None:
    threads = [(posted["file"], posted["thread"]) for posted in POSTED]

    assert len(set(threads)) == len(threads)
    assert all("#" in thread and "/" in thread for _, thread in threads)
