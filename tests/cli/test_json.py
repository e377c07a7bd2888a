"""``--json`` prints one JSON document and nothing else, in every command; without it, people get sentences."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.page.stage import TRACES, Stage, nights, trace
from wslgpud.cli import app

pytestmark = pytest.mark.usefixtures("without_torch")

HOSTS = TRACES.parent / "hosts"
STATE = ("--state", "{state}")
#: command -> arguments with which it has something to show, and its exit status: 1 where that is a finding
COMMANDS: dict[str, tuple[tuple[str, ...], int]] = {
    "status": (("--host-root", str(HOSTS / "two-gpus"), *STATE), 0),
    "doctor": (("--host-root", str(HOSTS / "two-gpus"), "--no-torch", *STATE), 0),
    "replay": ((str(TRACES / "ram-leak_linear-1.jsonl.gz"),), 0),
    "incidents": (STATE, 0),
    "fit": (("7B", "--usable", "200GB", *STATE), 0),
    "sweep": (("true {{}}", "1", "2", "--anyway"), 0),
    "history": (("headroom_bytes", *STATE), 0),
    "config show": ((), 0),
    "alerts list": (STATE, 0),
    "alerts show": (("{message}", *STATE), 0),
    "brake list": (STATE, 0),
    "brake try": (STATE, 0),
    "stress history": (STATE, 0),
    "stress show": (("2", *STATE), 0),
    "stress compare": (("2", "3", *STATE), 0),
    "wslconfig check": (("--file", "{mistaken}"), 1),
    "wslconfig show": (("--file", "{mistaken}", "--host-root", str(HOSTS / "two-gpus")), 0),
    "wslconfig keys": ((), 0),
    "db info": (STATE, 0),
    "db check": (STATE, 0),
    "service status": (("--user",), 1),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A daemon's state after a leak and two nights, and a .wslconfig with a mistake."""
    here = tmp_path_factory.mktemp("state")
    stage = Stage(here, database=here / "wslgpud.db", name="here")
    nights(stage, 3)
    stage.play(trace("h200/h200-slow_leak-1"), 110)
    number = next(iter(stage.ledger.open.values())).id
    stage.close()
    mistaken = here / ".wslconfig"
    mistaken.write_text("[wsl2]\nmemroy=8GB\n")
    return {"state": str(here), "message": str(number), "mistaken": str(mistaken)}


def run(command: str, places: dict[str, str], *more: str) -> tuple[int, str]:
    arguments = [*command.split(), *(a.format(**places) for a in COMMANDS[command][0]), *more]
    done = CliRunner().invoke(app, arguments, env={"HOME": places["state"], "LC_ALL": "C.UTF-8"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout


def documents(command: str, text: str) -> list[Any]:
    """Return the output: one document, or for recordings one per change of level, each on a line."""
    return [json.loads(line) for line in text.splitlines()] if command == "replay" else [json.loads(text)]


def commands_with_json(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, below in getattr(command, "commands", {}).items():
        yield from commands_with_json(below, (*path, name))
    if any("--json" in parameter.opts for parameter in command.params):
        yield " ".join(path)


def test_every_command_that_knows_json_is_listed_here() -> None:
    begins_a_run = {"stress"}  # tests/stress/test_end_to_end.py

    assert set(commands_with_json(app)) - begins_a_run == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_json_when_asked_and_only_then(command: str, places: dict[str, str]) -> None:
    status, text = run(command, places, "--json")
    assert status == COMMANDS[command][1]
    assert all(documents(command, text)), "one document with something in it"

    status, text = run(command, places)
    assert status == COMMANDS[command][1]
    assert text.strip()
    with pytest.raises(json.JSONDecodeError):
        documents(command, text)


def test_what_a_command_prints_as_json_is_what_it_shows(places: dict[str, str]) -> None:
    def of(command: str) -> Any:
        return documents(command, run(command, places, "--json")[1])[0]

    assert [(remark["line"], "memory" in remark["fix"]) for remark in of("wslconfig check")] == [(2, True)]
    assert of("db check")["findings"] == []
