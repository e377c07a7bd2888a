"""What is written down is true: tables are generated, commands and keys exist."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from tests.support.pictures import monitor_svg, status_svg
from wslgpud.catalogue import catalogue, table
from wslgpud.cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_readmes_table_of_metrics_is_the_catalogue() -> None:
    """After a change: ./tests/renew."""
    shown = re.search(r"<!-- metrics[^>]*-->\n(.*)<!-- end -->", README, re.DOTALL)[1]

    assert shown == table()


def test_the_readmes_picture_is_what_status_prints_of_a_real_warning() -> None:
    """Recorded on an NVIDIA H200 on 2026-11-21 by on_a_real_card.py. After a change: ./tests/renew."""
    document = json.loads((ROOT / "tests/gpu/status-warning.json").read_text())
    picture = ROOT / "deploy/pictures/status.svg"
    if os.environ.get("WSLGPUD_RENEW"):
        picture.write_text(status_svg(document))

    assert picture.read_text() == status_svg(document)


def test_the_readmes_picture_of_the_live_view_is_what_monitor_draws_of_a_real_warning() -> None:
    """Recorded on an NVIDIA H200 on 2026-11-21 by on_a_real_card.py. After a change: ./tests/renew."""
    saved = json.loads((ROOT / "tests/gpu/monitor-warning.json").read_text())
    picture = ROOT / "deploy/pictures/monitor.svg"
    if os.environ.get("WSLGPUD_RENEW"):
        picture.write_text(monitor_svg(saved))

    assert picture.read_text() == monitor_svg(saved)


def test_every_command_in_the_readme_exists() -> None:
    known = {c.name or c.callback.__name__ for c in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    named = set(re.findall(r"^wslgpud (\w+)", README, re.MULTILINE))

    assert named
    assert named <= known


def test_every_link_in_the_readme_leads_somewhere() -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", README)

    assert [t for t in targets if not (ROOT / t).exists()] == []


def test_every_metric_says_what_it_means_in_sentences() -> None:
    assert [spec.name for spec in catalogue() if not re.fullmatch(r"[A-Z0-9].* .*\.", spec.help)] == []
