"""Screens of commands over one recorded history and over recorded machines. After a change: ./tests/renew."""

from __future__ import annotations

import os
import re
import time
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.page.stage import TRACES, Stage, nights, past_incidents, trace
from wslgpud.cli import app

HOSTS = TRACES.parent / "hosts"
NOON = datetime(2026, 11, 20, 12, 0).timestamp()
STATE = ("--state", "{state}")
LATELY = ("--since", "4min")
DOCTOR = ("doctor", "--no-torch", *STATE, "--host-root")
#: file of the screen -> command, and its exit status
SCREENS: dict[str, tuple[tuple[str, ...], int]] = {
    "incidents": (("incidents", *STATE), 0),
    "incidents-lately": (("incidents", "--since", "4d", "--until", "1d", *STATE), 0),
    "open-alerts": (("alerts", "list", *STATE), 0),
    "brake-trial": (("brake", "try", *STATE), 0),
    "history": (("history", *STATE), 0),
    "headroom": (("history", "headroom", *LATELY, *STATE), 0),
    "two-units": (("history", "vram", "exhaustion*", "gpu_up", *LATELY, *STATE), 0),
    "nights": (("stress", "history", *STATE), 0),
    "night": (("stress", "show", "2", *STATE), 0),
    "two-nights": (("stress", "compare", "2", "8", *STATE), 0),
    "doctor": ((*DOCTOR, str(HOSTS / "two-gpus")), 0),
    "doctor-problems": ((*DOCTOR, str(HOSTS / "wsl2-swap-thrash")), 1),
    "settings": (("wslconfig", "show", "--host-root", str(HOSTS / "wsl2-idle")), 0),
    "replay": (("replay", str(TRACES / "ram-leak_linear-1.jsonl.gz")), 0),
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A daemon's state at noon: ten nights, four incidents that are over, one that is open, and its number."""
    folder = tmp_path_factory.mktemp("state")
    stage = Stage(folder, database=folder / "wslgpud.db", name="here")
    stage.clock._stopped = 5000.0, NOON
    nights(stage, 10)
    past_incidents(stage)
    stage.play(trace("h200/h200-slow_leak-1"), 240)
    (incident,) = stage.ledger.open.values()
    stage.close()
    return folder, incident.id


@pytest.mark.parametrize("name", SCREENS)
def test_a_command_shows_its_screen(name: str, played: tuple[Path, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOON + 1)
    (state, number), (words, status) = played, SCREENS[name]
    environment = {"COLUMNS": "100", "HOME": str(state), "LC_ALL": "C.UTF-8"}
    done = CliRunner().invoke(app, [word.format(state=state) for word in words], env=environment)
    # Rows of several tables are numbered together, in the order in which threads write them.
    text = re.sub(rf"^( *){number}  ", r"\1NN  ", done.output.replace(str(state), "STATE"), flags=re.MULTILINE)

    screen = "".join(f"{line.rstrip()}\n" for line in text.splitlines())

    file = Path(__file__).parent / "screens" / f"{name}.txt"
    if os.environ.get("WSLGPUD_RENEW"):
        file.write_text(screen)
    assert done.exit_code == status
    assert screen == file.read_text()
