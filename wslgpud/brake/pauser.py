"""Pauses, terminates and kills the processes of a job."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Collection, Sequence

from wslgpud.brake import freezer, held_jobs
from wslgpud.brake.culprit import Job
from wslgpud.brake.held_jobs import HeldJob
from wslgpud.brake.process_scan import ProcessListing, cgroup_of, rescan, scan
from wslgpud.brake.process_tree import ProcessTree, ScannedProcess
from wslgpud.host import Host
from wslgpud.security.exact_signals import ExactProcess, send, state_of
from wslgpud.words import MessageLike, known, say

#: scans for children forked meanwhile; a job that still has new ones after the last is resumed
MAX_SCANS = 20

#: registers a job with the watchdog and on disk before it is stopped; returns why that failed, or nothing
Register = Callable[[HeldJob], MessageLike]


def exact_processes(members: Sequence[ScannedProcess]) -> tuple[ExactProcess, ...]:
    return tuple(ExactProcess(*process.key, process.uid) for process in members if process.uid is not None)


def pause(
    host: Host, job: Job, seen: ProcessListing, users: Collection[int], register: Register
) -> tuple[HeldJob | None, MessageLike]:
    """Pause a job found in the scan ``seen``; return it as paused, or None and the reason.

    Every process is registered before it is stopped, and all are resumed if anything fails. A job with a terminal is
    stopped rather than frozen: only a stop makes its shell take the terminal back (job control).
    """
    ways = [_freeze, _stop]
    if any(process.terminal for process in job.members):
        ways.reverse()
    problem: MessageLike = ""
    for way in ways:
        held, why = way(host, job, seen, users, register)
        if held is not None:
            return held, ""
        problem = why or problem
    return None, problem


def _freeze(
    host: Host, job: Job, seen: ProcessListing, users: Collection[int], register: Register
) -> tuple[HeldJob | None, MessageLike]:
    """Freeze the cgroup of a job that is alone in it; None without a reason if it is not, or the kernel refuses."""
    pids = {process.pid for process in job.members}
    path = freezer.common_cgroup([cgroup_of(pid, host) for pid in pids])
    folder = freezer.folder_of(path) if path else ""
    inside = freezer.pids_in(folder) if folder else None
    if not inside or not inside <= pids:
        return None, ""
    held = HeldJob(exact_processes(job.members), folder)
    if problem := register(held):
        return None, problem
    with contextlib.suppress(OSError):
        freezer.set_frozen(folder, frozen=True)
        # It may have forked since the scan, or a foreign process may have been moved in.
        members, _ = _members_now(host, held, job, seen, users)
        inside = freezer.pids_in(folder)
        if inside is not None and inside <= {process.pid for process in members}:
            held = HeldJob(exact_processes(members), folder)
            if problem := register(held):
                held_jobs.resume(held)
            return (None, problem) if problem else (held, "")
    held_jobs.resume(held)
    return None, ""


def _stop(
    host: Host, job: Job, seen: ProcessListing, users: Collection[int], register: Register
) -> tuple[HeldJob | None, MessageLike]:
    """Send SIGSTOP to a job process by process, rescanning until no new child is running."""
    held, waiting = HeldJob(()), exact_processes(job.members)
    for _ in range(MAX_SCANS):
        held = HeldJob((*held.processes, *waiting))
        if problem := register(held):
            held_jobs.resume(held)
            return None, problem
        problems = held_jobs.stop(waiting)
        # Processes that exited meanwhile do not matter; if one may not be stopped, the job would run on incomplete.
        refused = [problem for process, problem in problems.items() if state_of(process)]
        if refused:
            held_jobs.resume(held)
            return None, known(refused[0])
        stopped = {(process.pid, process.start_ticks) for process in held.processes}
        members, seen = _members_now(host, held, job, seen, users)
        waiting = exact_processes([process for process in members if process.key not in stopped])
        if not waiting:
            return held, ""
        if len(held.processes) + len(waiting) > held_jobs.MAX_PROCESSES:
            break
    held_jobs.resume(held)
    return None, say("it forks processes faster than they can be stopped")


def _members_now(
    host: Host, held: HeldJob, job: Job, seen: ProcessListing, users: Collection[int]
) -> tuple[tuple[ScannedProcess, ...], ProcessListing]:
    """Return a job's members including children forked since ``seen``, and the updated scan."""
    # From every member: one that exited meanwhile has left its children to another parent.
    held_keys = {(process.pid, process.start_ticks) for process in held.processes}
    known_keys = held_keys.union(process.key for process in job.roots)

    def known_in(tree: ProcessTree) -> list[ScannedProcess]:
        return [process for process in tree.by_pid.values() if process.key in known_keys]

    before = ProcessTree(seen.processes, {})
    below = {process for top in known_in(before) for process in before.subtree(top)}
    # A process that is not held may have called exec meanwhile: a shell may have become a compiler.
    seen = rescan(host, seen, {process.pid for process in below if process.key not in held_keys})
    now = ProcessTree(seen.processes, {})
    return now.members(known_in(now), users), seen


def is_paused(held: HeldJob) -> bool | None:
    """Return whether a job is still paused; False if someone resumed it, None if it is gone."""
    if held.cgroup:
        return freezer.is_frozen(held.cgroup)
    states = [state for process in held.processes if (state := state_of(process))]
    # D, uninterruptible sleep: it stops as soon as its I/O completes.
    return all(state in "TtD" for state in states) if states else None


def terminate(held: HeldJob) -> None:
    """Send SIGTERM to all processes of a job and resume them, so that they can handle it."""
    for process in held.processes:
        send(process, signal.SIGTERM)
    held_jobs.resume(held)


def kill(host: Host, held: HeldJob, users: Collection[int]) -> None:
    """Send SIGKILL to what is left of a job and to everything it has started since."""
    inside = (freezer.pids_in(held.cgroup) if held.cgroup else None) or set()
    now = ProcessTree(scan(host).processes, {})
    keys = {(process.pid, process.start_ticks) for process in held.processes}
    left = [process for process in now.by_pid.values() if process.key in keys or process.pid in inside]
    for process in exact_processes(now.members(left, users, stopped=True)):
        send(process, signal.SIGKILL)


def has_ended(held: HeldJob) -> bool:
    """Return whether no process of a job is left."""
    if held.cgroup and freezer.is_frozen(held.cgroup) is not None:
        return False
    return not any(state_of(process) for process in held.processes)
