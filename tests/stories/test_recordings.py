"""The stories again, from recordings: ``replay`` says the same of each as the daemon did live."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.stories import surfaces
from tests.stories.machine import Played, played
from tests.stories.scripts import STORIES
from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.model import Level, Snapshot, Transition

#: stories of sources: no memory runs out in them
NOT_OF_MEMORY = {"a card lost", "a silent source"}


@pytest.fixture
def _signals() -> Iterator[None]:
    """Give back what ``record`` sets for the end of its process."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def recorded(telling: Played, file: Path, patch: pytest.MonkeyPatch) -> None:
    """Run ``wslgpud record`` on the same machine, second by second, up to a Ctrl-C."""
    states = iter(telling.states)

    class Seen:
        delay_seconds = 0.0

        def __init__(self, config: Config, host: Host) -> None:
            pass

        def tick(self) -> tuple[Snapshot, list[Transition]]:
            if (state := next(states, None)) is None:
                raise KeyboardInterrupt
            return state, []

        def close(self) -> None:
            pass

    with patch.context() as patched:
        patched.setattr("wslgpud.sampling.assessor.Assessor", Seen)
        done = surfaces.command(telling, "en", "record", str(file))
    assert done.stdout == f"{len(telling.states)} samples in {file}\n"


def said_live(telling: Played) -> list[dict[str, Any]]:
    """Return the changes of level in the forecasts that the daemon showed."""
    found = []
    for second, (before, now) in enumerate(pairwise([{"forecasts": []}, *telling.documents])):
        levels = {f["resource"]: f["level"] for f in before["forecasts"] if f.get("cause") != "blind"}
        for forecast in now["forecasts"]:
            # That memory is not read is told live; a recording is about what was.
            if forecast.get("cause") != "blind" and forecast["level"] != levels.get(forecast["resource"], "ok"):
                keys = ("resource", "level", "who", "reason")
                found.append({"t": float(second), **{key: forecast.get(key) for key in keys}})
    return found


@pytest.mark.usefixtures("_signals")
@pytest.mark.parametrize("story", STORIES)
def test_a_replay_says_what_the_daemon_said_at_the_same_moments(
    story: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tale, file = STORIES[story](), tmp_path / "story.jsonl.gz"
    with played(tale.script, tmp_path) as telling:
        telling.until(tale.end)
    recorded(telling, file, monkeypatch)

    lines = surfaces.command(telling, "en", "replay", "--json", str(file)).stdout.splitlines()
    replayed = [json.loads(line) for line in lines]

    keys = ("t", "resource", "level", "who", "reason")
    assert [{key: row[key] for key in keys} for row in replayed] == said_live(telling)
    assert bool(replayed) == (story not in NOT_OF_MEMORY)


@pytest.mark.usefixtures("_signals")
@pytest.mark.parametrize("code", ["en", "zh"])
def test_its_timeline_has_the_verdict_in_the_readers_language(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tale, file = STORIES["a leak, a warning, a kill"](), tmp_path / "story.jsonl.gz"
    with played(tale.script, tmp_path, language=code) as telling:
        telling.until(tale.end)
    recorded(telling, file, monkeypatch)
    timeline = surfaces.command(telling, code, "replay", str(file)).stdout

    warned = [row for row in said_live(telling) if Level[row["level"].upper()] >= Level.WARNING]
    assert [row["level"] for row in warned] == ["warning", "critical", "emergency"]
    for row in warned:
        assert telling.documents[int(row["t"])]["headline"] in timeline
