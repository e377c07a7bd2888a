"""A paused job, its rows in the incident and its entry in the status document."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from wslgpud.alerts.messages import iso
from wslgpud.alerts.rules import BRAKE
from wslgpud.brake.culprit import Job
from wslgpud.brake.held_jobs import HeldJob
from wslgpud.brake.policy import PauseState
from wslgpud.brake.process_tree import ProcessKey, ScannedProcess
from wslgpud.model import Forecast, Level, Snapshot, Transition
from wslgpud.risk.attribution import GROUP, full_name
from wslgpud.security.redaction import named
from wslgpud.words import Fact, Message, MessageLike, say

#: to a paused job
Command = Literal["resume", "stop"]
#: how a pause ended, by the label ``how`` of ``brake_ends``
OUTCOMES: Mapping[str, Message] = {
    "room": say("resumed when memory was free again"),
    "owner": say("resumed manually"),
    "time": say("resumed: nobody decided within hold_minutes"),
    "stopped": say("stopped on request"),
    "ended": say("ended"),
    "restart": say("resumed because wslgpud stopped"),
}
#: pids listed per job in the status document
MAX_PIDS = 32
#: outcomes that lose no work
SAVING = ("room", "owner", "time", "restart")


@dataclass(slots=True)
class PausedJob:
    """A paused job; ``killed_t`` is when SIGKILL is due, once SIGTERM was sent (monotonic)."""

    number: int
    resource: str
    who: MessageLike
    paused_wall: float
    size_bytes: int
    #: age of its oldest process when it was paused
    ran_seconds: float
    root: ProcessKey
    held: HeldJob
    state: PauseState
    forecast: Forecast
    killed_t: float | None = None
    checked_t: float = 0.0
    stood_still: bool = False
    command: Command | None = None

    def document(self) -> dict[str, Any]:
        """Return its entry in the status document, with untranslated messages."""
        return {
            "job": self.number,
            "resource": self.resource,
            "who": self.who,
            "paused": iso(self.paused_wall),
            "left_bytes": self.state.left_bytes,
            "needed_bytes": round(self.state.needed_bytes),
            "size_bytes": self.size_bytes,
            "ran_seconds": round(self.ran_seconds),
            "processes": len(self.held),
            "pids": [process.pid for process in self.held[:MAX_PIDS]],
            "ending": self.killed_t is not None,
        }

    def outcome(self, how: str, wall: float) -> Mapping[str, Fact]:
        """Return the facts about the end of its pause, including the work saved."""
        facts: dict[str, Fact] = {"outcome": OUTCOMES[how], "who": self.who, "held_seconds": wall - self.paused_wall}
        return {**facts, "saved_seconds": self.ran_seconds} if how in SAVING else facts


def row(
    resource: str, wall: float, mono: float, jobs: Sequence[PausedJob], outcome: Mapping[str, Fact] | None = None
) -> Transition:
    """Return a resource's alert row: the last of its ``jobs``, or the outcome if none is paused any more."""
    if not jobs:
        facts: dict[str, Fact] = {"end": "held", **(outcome or {})}
        return Transition(wall, mono, resource, BRAKE, Level.CRITICAL, Level.OK, facts=facts)
    last = jobs[-1]
    facts = {
        "job": last.number,
        "who": last.who,
        "paused_clock": last.paused_wall,
        "left_bytes": last.state.left_bytes,
        "needed_bytes": round(last.state.needed_bytes),
        "count": len(last.held),
        "ran_seconds": last.ran_seconds,
        **({"more": len(jobs) - 1} if len(jobs) > 1 else {}),
    }
    return Transition(wall, mono, resource, BRAKE, Level.OK, Level.CRITICAL, forecast=last.forecast, facts=facts)


def job_name(job: Job, snapshot: Snapshot, forecast: Forecast) -> MessageLike:
    """Return a job's name: the forecast's if that names one of its processes, else that of its root or workers."""
    pids = {process.pid for process in job.members}
    if forecast.who_pid in pids and forecast.who:
        return forecast.who
    if len(job.roots) > 1:
        return Message(GROUP, {"count": len(job.roots), "name": named(job.roots[0].name)})
    root = job.roots[0]
    command = next((p.command for p in snapshot.processes if p.key == root.key and p.command), named(root.name))
    return full_name(command, root.pid)


def run_seconds(members: Sequence[ScannedProcess], boot_seconds: float) -> float:
    """Return the age of the oldest of these processes, given the time since boot."""
    return max(0.0, boot_seconds - min(process.start_ticks for process in members) / os.sysconf("SC_CLK_TCK"))
