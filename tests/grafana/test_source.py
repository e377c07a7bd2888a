"""The committed dashboards are what the code makes. In a file of its own: the SDK needs Python 3.11."""

from __future__ import annotations

import os

import pytest

from tests.grafana.panels import FOLDER

pytest.importorskip("grafana_foundation_sdk", reason="Grafana's SDK needs Python 3.11")


def test_the_committed_dashboards_are_what_the_code_makes() -> None:
    """After a change: ./tests/renew."""
    from grafana.source.__main__ import dashboards, main  # noqa: PLC0415 - only where the SDK is

    if os.environ.get("WSLGPUD_RENEW"):
        main()
    committed = {file.stem: file.read_text() for file in FOLDER.glob("*.json")}

    assert committed == dashboards()
