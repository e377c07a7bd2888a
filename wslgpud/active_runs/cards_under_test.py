"""Cards under test by one of our runs, which fills them completely, so that warnings are suppressed.

No one else can suppress a daemon's warnings. The kernel says whose run it is, and that the worker which it names is its
living child. ``wslgpud.sources.procfs.Trust`` defines trusted users; this daemon's own configuration and clock limit
the time of a test.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from wslgpud.active_runs.notes import Noted
from wslgpud.config import Stress
from wslgpud.host import Host
from wslgpud.model import Observation
from wslgpud.sources.procfs import Trust, identity

#: After the worker's end, NVML may show its memory in use for a while; see ``stress_run.py``.
GIVING_BACK_SECONDS = 7.0


@dataclass
class _Test:
    """The worker of a run, by pid and start, and when it was first and last seen."""

    worker: tuple[int, int]
    since_mono: float
    last_mono: float


class CardsUnderTest:
    """Follows the stress runs, at every tick. Not thread-safe."""

    def __init__(self, host: Host, settings: Stress, trusted: Trust) -> None:
        self._host, self._trust = host, trusted
        self._limit_seconds = settings.deadline_seconds + settings.soak_seconds
        #: keyed by run (pid and start) and card
        self._tests: dict[tuple[int, int, int], _Test] = {}

    def untested(self, observation: Observation, runs: Iterable[Noted]) -> Observation:
        """Return an observation without the cards under test."""
        tested = self.look(runs)
        gpus = tuple(card for card in observation.gpus if card.index not in tested)
        return replace(observation, gpus=gpus) if tested else observation

    def look(self, runs: Iterable[Noted]) -> set[int]:
        """Return the cards under a trusted user's test within its time limit."""
        now, before, tested = self._host.clock.mono(), self._tests, set[int]()
        self._tests = {}
        for run in runs:
            card = run.document.get("gpu")
            if run.document["kind"] != "stress" or card is None or not self._trust.covers(run.who):
                continue
            key = (run.who.pid, run.who.start_ticks, card)
            if (test := self._followed(before.get(key), run, now)) is None:
                continue
            self._tests[key] = test
            fresh = now - test.last_mono <= GIVING_BACK_SECONDS
            if fresh and now - test.since_mono <= self._limit_seconds:
                tested.add(card)
        return tested

    def _followed(self, before: _Test | None, run: Noted, now: float) -> _Test | None:
        worker = identity(self._host, run.document.get("worker_pid", 0))
        if worker is None or not worker.alive or worker.parent != run.who.pid:
            return before
        key = worker.pid, worker.start_ticks
        since = before.since_mono if before is not None and before.worker == key else now
        return _Test(key, since, now)
