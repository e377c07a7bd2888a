"""A command that came to more than is free is warned of by the daemon before it takes anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.advise.guard.test_announce import ALL, remembered, start
from tests.support.daemons import daemon, eventually
from wslgpud.words.units import size


@pytest.mark.slow
def test_the_daemon_warns_of_a_command_that_once_took_too_much(tmp_path: Path) -> None:
    remembered(tmp_path / "state", peak_bytes=ALL)
    with daemon(tmp_path, settings={"WSLGPUD_SAMPLING__GPU": "false"}) as running:
        guard = start(tmp_path / "state")
        try:

            def ram() -> dict:
                forecasts = running.status().get("forecasts", [])
                found = next((f for f in forecasts if f["resource"] == "ram"), {})
                return found if found.get("who", "").endswith(f"(guard {guard.pid})") else {}

            forecast = eventually(ram, "a warning of what the command will want")
            assert forecast["level"] == "warning"
            assert size(ALL) in forecast["reason"]
        finally:
            guard.communicate("\n")
        eventually(lambda: not ram(), "an end of the warning with the command's")
