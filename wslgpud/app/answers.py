"""What the daemon says when asked: how things stand, and what the doctor finds."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wslgpud.alerts.incidents import OpenIncident
from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.model import StressResult, Transition
from wslgpud.sampling.pipeline import PipelineState
from wslgpud.serve.status import status, waiting
from wslgpud.store import Store, StoreError
from wslgpud.verdict import Verdict
from wslgpud.words import MessageLike, translator

log = logging.getLogger(__name__)

#: how far back ``status`` looks for changes of level, and how many it names
RECENT_SECONDS, MOST_RECENT = 24 * 3600.0, 10


class Moment(NamedTuple):
    """How things stood after a tick."""

    state: PipelineState
    verdict: Verdict
    incidents: Sequence[OpenIncident]
    stress: Sequence[StressResult]


class Answers:
    """Answers from ``latest``, which each tick replaces; the server's threads ask."""

    def __init__(self, config: Config, host: Host, folder: Path, store: Store) -> None:
        self._config, self._host, self._folder, self._store = config, host, folder, store
        self.latest: Moment | None = None

    def now(self, language: str, recent: Sequence[Transition] = ()) -> dict[str, Any]:
        """Return the state of things as JSON, worded in a language; it waits for nothing."""
        if (latest := self.latest) is None:
            return waiting(translator(language))
        state, verdict, incidents, stress = latest
        return status(state, verdict, translator(language), recent=recent, incidents=incidents, stress=stress)

    def status(self, language: str) -> dict[str, Any]:
        """Return the same with what was announced lately, the newest first; it looks into the database."""
        recent: list[Transition] = []
        if self.latest is not None:
            since = self.latest.state.snapshot.wall - RECENT_SECONDS
            try:
                recent = [row for _, row in reversed(self._store.transitions(since, newest=MOST_RECENT))]
            except StoreError as error:
                # The store reports its trouble by itself; whoever asks must not fill the log with it.
                log.debug("what was announced is not known: %s", error)
        return self.now(language, recent)

    def checkup(self) -> list[dict[str, MessageLike]]:
        """Return what the doctor finds; only the command asks for torch, because that starts the users' Pythons."""
        from wslgpud.advise import doctor  # only when somebody looks

        found = doctor.run(self._host, self._config, None, str(self._folder))
        return [finding._asdict() for finding in found]
