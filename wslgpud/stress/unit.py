"""Stress runs in a separate unit: the daemon leaves a request file, wslgpud-stress.path starts the unit.

The daemon is small, protected from the OOM killer, and may neither start services nor switch users; torch is a big
program in a user's home folder. The two share only two files in the state folder: the request, which systemd watches
for, and the answer.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wslgpud.host import Clock
from wslgpud.model import GpuSample, StressResult
from wslgpud.security import safe_files
from wslgpud.security.shapes import message
from wslgpud.store.records import stress_from_json, stress_to_json
from wslgpud.stress.worker_job import MODES, Mode
from wslgpud.words import MessageError, MessageLike, cause, from_json, say, to_json

#: "yes" where the unit is available; set by wslgpud.service
VARIABLE = "WSLGPUD_STRESS_UNIT"
REQUEST, ANSWER = "stress-request.json", "stress-answer.json"
#: The other side is another user, not trusted with links, pipes or endless files.
MAX_REQUEST_BYTES, MAX_ANSWER_BYTES = 4096, 16 << 20
#: time for systemd to start the unit, Python and NVML, and to stop them
AROUND_SECONDS = 120.0
LOOK_SECONDS = 0.5


class NoRequestError(MessageError):
    """There is no request, or it is malformed."""


@dataclass
class Asker:
    """The daemon's side; used like ``stress_run.Runner``."""

    clock: Clock
    folder: Path
    patience_seconds: float  # for one whole run
    # Ends the wait; the run itself is ended by systemd, which stops the unit with the daemon (PartOf=).
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, sample: GpuSample, mode: Mode) -> StressResult:
        asked_wall, asked = self.clock.wall(), self.clock.mono()

        def without(verdict: Any, reason: MessageLike) -> StressResult:
            return StressResult(asked_wall, sample.uuid, sample.index, sample.name, verdict, reason)

        try:
            (self.folder / ANSWER).unlink(missing_ok=True)
            _put(self.folder / REQUEST, {"gpu": sample.index, "mode": mode})
            while self.clock.mono() - asked < self.patience_seconds and not self.stop.wait(LOOK_SECONDS):
                if (result := self._answer()) is not None:
                    return result
            (self.folder / REQUEST).unlink(missing_ok=True)
        except (OSError, ValueError, MessageError) as error:
            return without("failed", say("cannot ask wslgpud-stress.service: {why}", why=cause(error)))
        if self.stop.is_set():
            return without("left", say("wslgpud is shutting down"))
        silent = say(
            "wslgpud-stress.service gave no answer within {patience_seconds}: see"
            " systemctl status wslgpud-stress.path, and journalctl -u wslgpud-stress",
            patience_seconds=self.patience_seconds,
        )
        return without("failed", silent)

    def _answer(self) -> StressResult | None:
        file = self.folder / ANSWER
        try:
            document = safe_files.parsed(safe_files.contents(file, MAX_ANSWER_BYTES))
        except FileNotFoundError:
            return None
        file.unlink()
        if "fault" in document:
            if not message(document["fault"]):
                raise ValueError(f"{file.name} holds no answer")
            raise MessageError(from_json(document["fault"]))
        return stress_from_json(document)


def answer(folder: Path, run: Callable[[int, Mode], StressResult]) -> StressResult:
    """The unit's side: do the requested run, and leave the answer. Raises NoRequestError: there is no request."""
    file = folder / REQUEST
    try:
        document = safe_files.parsed(safe_files.contents(file, MAX_REQUEST_BYTES))
        gpu, mode = int(document["gpu"]), document["mode"]
        file.unlink()  # while it exists, systemd starts us again
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise NoRequestError("{file} holds no request: {why}", file=str(file), why=cause(error)) from error
    if mode not in MODES:
        raise NoRequestError("{file}: there is no mode {mode}", file=str(file), mode=repr(mode))
    try:
        result = run(gpu, mode)
    except Exception as error:
        _put(folder / ANSWER, {"fault": to_json(cause(error))})
        raise
    _put(folder / ANSWER, stress_to_json(result))
    return result


def _put(file: Path, document: dict[str, Any]) -> None:
    safe_files.put(file, json.dumps(document), mode=0o644)  # the two sides are different users
