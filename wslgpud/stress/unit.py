"""Stress runs in a unit of their own: the monitor asks with a file, wslgpud-stress.path starts the unit.

The service that watches is small, protected from the OOM killer, and may neither start services nor become
another user; torch is a big program in somebody's home folder. All that the two share are two files in the
state folder: the request, which systemd waits for, and the answer.
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
from wslgpud.security.shapes import said
from wslgpud.store.records import stress_from_json, stress_to_json
from wslgpud.stress.worker_job import MODES, Mode
from wslgpud.words import MessageError, MessageLike, cause, from_json, say, to_json

#: "yes" where the unit is there to be asked; set by wslgpud.service
VARIABLE = "WSLGPUD_STRESS_UNIT"
REQUEST, ANSWER = "stress-request.json", "stress-answer.json"
#: The other side is another user, whom neither trusts with links, pipes or files without an end.
MOST_REQUEST_BYTES, MOST_ANSWER_BYTES = 4096, 16 << 20
#: for systemd to start the unit, Python and NVML, and for all of that to end
AROUND_SECONDS = 120.0
LOOK_SECONDS = 0.5


class NoRequestError(MessageError):
    """Nobody asks for a run, or what lies there is no request."""


@dataclass
class Asker:
    """The monitor's side; to be used like ``stress.run.Runner``."""

    clock: Clock
    folder: Path
    patience_seconds: float  # for one whole run
    # Ends the wait; the run itself is ended by systemd, which stops the unit with the monitor (PartOf=).
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, sample: GpuSample, mode: Mode) -> StressResult:
        asked_wall, asked = self.clock.wall(), self.clock.mono()

        def without(verdict: Any, reason: MessageLike) -> StressResult:
            return StressResult(asked_wall, sample.uuid, sample.index, sample.name, verdict, reason)

        try:
            (self.folder / ANSWER).unlink(missing_ok=True)
            _put(self.folder / REQUEST, {"gpu": sample.index, "mode": mode})
            while self.clock.mono() - asked < self.patience_seconds:
                if self.stop.wait(LOOK_SECONDS):
                    return without("left", say("wslgpud is shutting down"))
                if (result := self._answer()) is not None:
                    return result
            (self.folder / REQUEST).unlink(missing_ok=True)
        except (OSError, ValueError, MessageError) as error:
            return without("failed", say("cannot ask wslgpud-stress.service: {why}", why=cause(error)))
        silent = say(
            "wslgpud-stress.service gave no answer within {patience_seconds}: see"
            " systemctl status wslgpud-stress.path, and journalctl -u wslgpud-stress",
            patience_seconds=self.patience_seconds,
        )
        return without("failed", silent)

    def _answer(self) -> StressResult | None:
        file = self.folder / ANSWER
        try:
            document = safe_files.parsed(safe_files.contents(file, MOST_ANSWER_BYTES))
        except FileNotFoundError:
            return None
        file.unlink()
        if "fault" in document:
            if not said(document["fault"]):
                raise ValueError(f"{file.name} holds no answer")
            raise MessageError(from_json(document["fault"]))
        return stress_from_json(document)


def answer(folder: Path, run: Callable[[int, Mode], StressResult]) -> StressResult:
    """Do what the request asks for, and leave the answer: the unit's side. Raises NoRequestError: there is none."""
    file = folder / REQUEST
    try:
        document = safe_files.parsed(safe_files.contents(file, MOST_REQUEST_BYTES))
        gpu, mode = int(document["gpu"]), document["mode"]
        file.unlink()  # while it lies there systemd starts us again
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
