"""The brake's tests."""

from __future__ import annotations

import pytest

from wslgpud.brake import watchdog


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no reason to give a watchdog up."""
    monkeypatch.setattr(watchdog, "CONFIRM_SECONDS", 60.0)
    monkeypatch.setattr(watchdog, "START_SECONDS", 60.0)
