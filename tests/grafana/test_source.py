"""What needs Grafana's SDK, and with it Python 3.11: dashboards are what the code makes, and typed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.grafana.panels import DASHBOARDS, FOLDER

pytest.importorskip("grafana_foundation_sdk", reason="Grafana's SDK needs Python 3.11")


def test_the_committed_dashboards_are_what_the_code_makes() -> None:
    """After a change: ./tests/renew."""
    from grafana.source.__main__ import dashboards, main  # only where the SDK is

    if os.environ.get("WSLGPUD_RENEW"):
        main()
    committed = {file.stem: file.read_text() for file in FOLDER.glob("*.json")}

    assert committed == dashboards()


def understood(board: Any) -> Any:
    """Return what is left of a dashboard after a way through the types that Grafana generates for Python."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder  # only where the SDK is
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(board)))


def lost(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield where something is not there any more, or another."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from lost(value, after.get(key), f"{path}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (a, b) in enumerate(zip(before, after, strict=True)):
            yield from lost(a, b, f"{path}/{index}")
    elif before != after:
        yield path


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_grafanas_types_know_every_option(uid: str) -> None:
    """What they do not know they drop. test_types.py asks a stricter judge, of words too, where node is."""
    assert list(lost(DASHBOARDS[uid], understood(DASHBOARDS[uid]))) == []


def test_a_misspelt_option_is_found() -> None:
    text = json.dumps(DASHBOARDS["wslgpud-gpu"])
    misspelt = json.loads(text.replace('"colorMode"', '"colourMode"'))

    assert all(path.endswith("/colourMode") for path in lost(misspelt, understood(misspelt)))
    assert any(lost(misspelt, understood(misspelt)))
