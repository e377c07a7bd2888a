"""The daemon says how many findings the doctor has, once there are any to speak of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.sampling.test_assessor import SteppingClock
from tests.support.daemons import eventually
from wslgpud.advise.checkups import Checkups
from wslgpud.host import SystemClock


def numbers(rounds: Checkups) -> dict[str, float]:
    return {reading.labels[0]: reading.value for reading in rounds.readings()}


def found(*states: str) -> list[dict[str, Any]]:
    return [{"state": state} for state in states]


def test_findings_are_counted_by_state_after_the_first_round():
    rounds = Checkups(lambda: found("problem", "good", "good"), SystemClock(), 0.0)
    assert numbers(rounds) == {}

    rounds.start()
    counts = eventually(lambda: numbers(rounds), "a round")
    rounds.close()

    assert counts == {"problem": 1, "note": 0, "good": 2, "could not tell": 0, "not applicable": 0}


def test_a_doctor_who_fails_takes_his_word_back_and_comes_again():
    visits = iter([found("note"), RuntimeError("fell down the stairs"), found("problem")])
    counts: list[dict[str, float]] = []

    def check() -> Iterable[dict[str, Any]]:
        counts.append(numbers(rounds))
        answer = next(visits, found("problem"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    rounds = Checkups(check, SystemClock(), 0.0, 0.0)
    rounds.start()
    eventually(lambda: len(counts) > 3, "four rounds")
    rounds.close()

    assert counts[0] == counts[2] == {}
    assert (counts[1]["note"], counts[3]["problem"]) == (1, 1)


def test_findings_in_an_answer_are_at_most_five_minutes_old():
    clock = SteppingClock()
    answers: list[list[dict[str, Any]] | Exception] = [found("good"), RuntimeError("fell"), found("note")]

    def check() -> list[dict[str, Any]]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    rounds = Checkups(check, clock)
    first = rounds.last()
    assert first == (1e9 + 1000.0, found("good"))
    clock.now += 299.9
    assert rounds.last() is first
    clock.now += 0.1
    with pytest.raises(RuntimeError, match="fell"):
        rounds.last()
    clock.now += 29.9
    assert rounds.last() is None
    clock.now += 0.1
    assert rounds.last() == (1e9 + 1330.0, found("note"))
