"""Pauses, terminates and kills the processes of a job."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Sequence

from wslgpud.brake import held_jobs
from wslgpud.brake.culprit import Job
from wslgpud.brake.held_jobs import HeldJob
from wslgpud.brake.process_scan import ProcessListing, rescan, scan
from wslgpud.brake.process_tree import ProcessTree, ScannedProcess
from wslgpud.host import Host
from wslgpud.security.exact_signals import ExactProcess, send, state_of
from wslgpud.words import MessageLike, known, say

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
        problems = held_jobs.stop(waiting)
        # Processes that exited meanwhile do not matter; if one may not be stopped, the job would run on incomplete.
        if refused := next((why for process, why in problems.items() if state_of(process)), ""):
            problem = known(refused)
            break
        stopped = held_jobs.keys(held)
        members, seen = _members_now(host, stopped, job, seen, users)
        waiting = exact_processes([process for process in members if process.key not in stopped])
        if not waiting:
            return held, ""
        if len(held) + len(waiting) > held_jobs.MAX_PROCESSES:
            break
    held_jobs.resume(held)
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
    held_jobs.resume(held)


def kill(host: Host, held: HeldJob, users: Collection[int]) -> None:
    """Send SIGKILL to what is left of a job and to everything it has started since."""
    now, keys = ProcessTree(scan(host).processes, {}), held_jobs.keys(held)
    left = [process for process in now.by_pid.values() if process.key in keys]
    for process in exact_processes(now.members(left, users, stopped=True)):
        send(process, signal.SIGKILL)


def has_ended(held: HeldJob) -> bool:
    """Return whether no process of a job is left."""
    return not any(map(state_of, held))
