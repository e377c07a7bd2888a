"""Many machines that write into one PostgreSQL database: each page shows its own, others when asked."""

from __future__ import annotations

import pytest

from tests.page.stage import Stage, nights, trace
from tests.page.test_api import ask, remember
from tests.store.conftest import postgresql, server_target  # noqa: F401 - fixtures
from wslgpud.model import Level, Transition
from wslgpud.words import Message

pytestmark = pytest.mark.servers
RAM = "wslgpud_memory_available_bytes"


@pytest.fixture
def two(server_target, tmp_path):
    """Two daemons, ``pc`` and ``trainer``, of which only the second has had trouble."""
    made = [Stage(tmp_path, database=server_target, name=name) for name in ("pc", "trainer")]
    pc, trainer = made
    remember(pc, (5, 11))
    trainer.play(trace("ram-leak_linear-1"), 171, thin=10)
    nights(trainer, 3)
    for stage in made:
        stage.store.flush()
    yield pc, trainer
    for stage in made:
        stage.close()


def test_series_are_of_the_requested_or_else_the_local_machine(two):
    pc, _ = two
    _, _, listed = ask(pc, "series")
    _, _, theirs = ask(pc, "series", host="trainer", match="wslgpud_headroom_bytes*")
    _, _, ours = ask(pc, "range", series=RAM, step=1)
    _, _, found = ask(pc, "range", series=theirs["series"][0]["name"], host="trainer", step=5)

    assert listed["hosts"] == ["pc", "trainer"]
    assert {one["metric"] for one in listed["series"]} == {RAM}
    assert ours["series"][0]["value"] == [11]
    assert len(found["series"][0]["value"]) > 5


def test_incidents_and_stress_runs_are_of_the_local_machine(two):
    pc, trainer = two
    now = trainer.clock.wall()

    for stage, any_ in ((pc, False), (trainer, True)):
        assert bool(ask(stage, "incidents")[2]["total"]) == any_
        assert bool(ask(stage, "stress")[2]["total"]) == any_
        assert bool(ask(stage, "processes", start=now - 3600, end=now + 60)[2]["total"]) == any_
    number = ask(trainer, "incidents")[2]["incidents"][0]["id"]
    assert ask(trainer, f"incidents/{number}")[0] == 200
    assert ask(pc, f"incidents/{number}")[0] == 404


def test_incidents_of_another_machine_are_not_resumed_at_restart(two):
    pc, _ = two
    pc.say(Transition(pc.clock.wall(), 0.0, "ram", "memory_exhaustion", Level.OK, Level.WARNING, Message("our own")))
    pc.store.flush()

    assert [str(row.message) for _, row in pc.store.reader.transitions()] == ["our own"]
