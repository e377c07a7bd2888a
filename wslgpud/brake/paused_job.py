"""A paused job: pausing, ending and killing it, its rows in the incident and its entry in the status document."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from wslgpud.alerts.rules import BRAKE
from wslgpud.brake import watchdog
from wslgpud.brake.culprit import Job
from wslgpud.brake.policy import PauseState
from wslgpud.brake.process_tree import ProcessKey, ProcessListing, ProcessTree, ScannedProcess, rescan, scan
from wslgpud.brake.watchdog import HeldJob
from wslgpud.host import Host
from wslgpud.model import Forecast, Level, Snapshot, Transition
from wslgpud.risk.attribution import GROUP, full_name
from wslgpud.security.exact_signals import ExactProcess, send, state_of
from wslgpud.security.redaction import named
from wslgpud.words import Fact, Message, MessageLike, known, say
from wslgpud.words.moments import iso

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


#: scans for children forked meanwhile; a job that still has new ones after the last is resumed
MAX_SCANS = 20

#: registers a job with the watchdog and on disk before it is stopped; returns why that failed, or nothing
Register = Callable[[HeldJob], MessageLike]


def exact_processes(members: Sequence[ScannedProcess]) -> HeldJob:
    return tuple(ExactProcess(*process.key, process.uid) for process in members if process.uid is not None)


def pause(
    host: Host, job: Job, seen: ProcessListing, users: Collection[int], register: Register
) -> tuple[HeldJob, MessageLike]:
    """Pause a job found in the scan ``seen``, rescanning until no new child is running.

    Return it as paused, or why it is not: all are resumed if anything fails. Each process is registered before it is
    stopped.
    """
    held: HeldJob = ()
    waiting = exact_processes(job.members)
    problem: MessageLike = ""
    for _ in range(MAX_SCANS):
        held = (*held, *waiting)
        if problem := register(held):
            break
        if refused := watchdog.stop(waiting):  # the job would run on incomplete
            problem = known(refused)
            break
        stopped = watchdog.keys(held)
        members, seen = _members_now(host, stopped, job, seen, users)
        waiting = exact_processes([process for process in members if process.key not in stopped])
        if not waiting:
            return held, ""
        if len(held) + len(waiting) > watchdog.MAX_PROCESSES:
            break
    watchdog.resume(held)
    return (), problem or say("it forks processes faster than they can be stopped")


def _members_now(
    host: Host, held: Collection[tuple[int, int]], job: Job, seen: ProcessListing, users: Collection[int]
) -> tuple[tuple[ScannedProcess, ...], ProcessListing]:
    """Return a job's members including children forked since ``seen``, and the updated scan."""
    # From every member: one that exited meanwhile has left its children to another parent.
    known_keys = {*held, *(process.key for process in job.roots)}

    def known_in(tree: ProcessTree) -> list[ScannedProcess]:
        return [process for process in tree.by_pid.values() if process.key in known_keys]

    before = ProcessTree(seen.processes, {})
    below = {process for top in known_in(before) for process in before.subtree(top)}
    # A process that is not held may have called exec meanwhile: a shell may have become a compiler.
    seen = rescan(host, seen, {process.pid for process in below if process.key not in held})
    now = ProcessTree(seen.processes, {})
    return now.members(known_in(now), users), seen


def is_paused(held: HeldJob) -> bool | None:
    """Return whether a job is still paused; False if someone resumed it, None if it is gone."""
    states = [state for process in held if (state := state_of(process))]
    # D, uninterruptible sleep: it stops as soon as its I/O completes.
    return all(state in "TtD" for state in states) if states else None


def terminate(held: HeldJob) -> None:
    """Send SIGTERM to all processes of a job and resume them, so that they can handle it."""
    for process in held:
        send(process, signal.SIGTERM)
    watchdog.resume(held)


def kill(host: Host, held: HeldJob, users: Collection[int]) -> None:
    """Send SIGKILL to what is left of a job and to everything it has started since."""
    now, keys = ProcessTree(scan(host).processes, {}), watchdog.keys(held)
    left = [process for process in now.by_pid.values() if process.key in keys]
    # Its own processes under any name: on SIGTERM, one may have become the shell that cleans up.
    for process in dict.fromkeys((*held, *exact_processes(now.members(left, users, stopped=True)))):
        send(process, signal.SIGKILL)


def has_ended(held: HeldJob) -> bool:
    """Return whether no process of a job is left."""
    return not any(map(state_of, held))
