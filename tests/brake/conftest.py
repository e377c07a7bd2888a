"""The brake's tests."""

from __future__ import annotations

import pytest

from wslgpud.brake import watchdog


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load on the test machine must not make the watchdog time out."""
    monkeypatch.setattr(watchdog, "CONFIRM_SECONDS", 60.0)
    monkeypatch.setattr(watchdog, "START_SECONDS", 60.0)
