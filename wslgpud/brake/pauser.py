"""Pausing a job, and ending it: carried out once that is decided."""

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

#: scans for children that have begun meanwhile; a job that still has new ones then is resumed
MOST_SCANS = 20

#: registers what is about to be held with the watchdog and on disk; returns why that cannot be, or nothing
Register = Callable[[HeldJob], MessageLike]


def exact_processes(members: Sequence[ScannedProcess]) -> tuple[ExactProcess, ...]:
    return tuple(ExactProcess(*one.key, one.uid) for one in members if one.uid is not None)


def pause(
    host: Host, job: Job, seen: ProcessListing, users: Collection[int], register: Register
) -> tuple[HeldJob | None, MessageLike]:
    """Pause a job, found in the processes ``seen`` just now; return what is held, or why it goes on.

    What is held is registered before anybody is stopped, and whatever goes wrong, nobody stays so. A shell learns of
    its job's stop, and gives the terminal its line back; of a freeze it would not.
    """
    ways = [_freeze, _stop]
    if any(one.terminal for one in job.members):
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
    """Freeze the cgroup of a job that is alone in one; without a reason where it is not, or the kernel cannot."""
    pids = {one.pid for one in job.members}
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
        # It may have started others since it was looked at, or somebody else may have been moved there.
        members, _ = _members_now(host, held, job, seen, users)
        inside = freezer.pids_in(folder)
        if inside is not None and inside <= {one.pid for one in members}:
            held = HeldJob(exact_processes(members), folder)
            if problem := register(held):
                held_jobs.resume(held)
            return (None, problem) if problem else (held, "")
    held_jobs.resume(held)
    return None, ""


def _stop(
    host: Host, job: Job, seen: ProcessListing, users: Collection[int], register: Register
) -> tuple[HeldJob | None, MessageLike]:
    """Stop a job process by process, again and again until no new child runs."""
    held, waiting = HeldJob(()), exact_processes(job.members)
    for _ in range(MOST_SCANS):
        held = HeldJob((*held.processes, *waiting))
        if problem := register(held):
            held_jobs.resume(held)
            return None, problem
        problems = held_jobs.stop(waiting)
        # Whoever has ended meanwhile is not missed; whoever may not be stopped must not go on alone.
        refused = [problem for one, problem in problems.items() if state_of(one)]
        if refused:
            held_jobs.resume(held)
            return None, known(refused[0])
        stopped = {(one.pid, one.start_ticks) for one in held.processes}
        members, seen = _members_now(host, held, job, seen, users)
        waiting = exact_processes([one for one in members if one.key not in stopped])
        if not waiting:
            return held, ""
        if len(held.processes) + len(waiting) > held_jobs.MOST_PROCESSES:
            break
    held_jobs.resume(held)
    return None, say("it starts processes faster than they can be stopped")


def _members_now(
    host: Host, held: HeldJob, job: Job, seen: ProcessListing, users: Collection[int]
) -> tuple[tuple[ScannedProcess, ...], ProcessListing]:
    """Return the members of a job with those that it has started since it was ``seen``, and a scan with these."""
    # From each of them anew: one that has ended meanwhile has left its children to somebody else.
    held_keys = {(one.pid, one.start_ticks) for one in held.processes}
    known_keys = held_keys.union(one.key for one in job.roots)

    def known_in(tree: ProcessTree) -> list[ScannedProcess]:
        return [one for one in tree.by_pid.values() if one.key in known_keys]

    before = ProcessTree(seen.processes, {})
    below = {one for top in known_in(before) for one in before.subtree(top)}
    # Who is not held may have become another program: a shell that a compiler has taken the place of, say.
    seen = rescan(host, seen, {one.pid for one in below if one.key not in held_keys})
    now = ProcessTree(seen.processes, {})
    return now.members(known_in(now), users), seen


def is_paused(held: HeldJob) -> bool | None:
    """Tell whether a job still stands still; None where it has ended. False: somebody has resumed it."""
    if held.cgroup:
        return freezer.is_frozen(held.cgroup)
    states = [state for one in held.processes if (state := state_of(one))]
    # One that waits for a disk stands still as soon as that has answered.
    return all(state in "TtD" for state in states) if states else None


def terminate(held: HeldJob) -> None:
    """Ask all of a job to end, and resume them to do so."""
    for one in held.processes:
        send(one, signal.SIGTERM)
    held_jobs.resume(held)


def kill(host: Host, held: HeldJob, users: Collection[int]) -> None:
    """End all of a job that is left, and what it has started since."""
    inside = (freezer.pids_in(held.cgroup) if held.cgroup else None) or set()
    now = ProcessTree(scan(host).processes, {})
    keys = {(one.pid, one.start_ticks) for one in held.processes}
    left = [one for one in now.by_pid.values() if one.key in keys or one.pid in inside]
    for one in exact_processes(now.members(left, users, stopped=True)):
        send(one, signal.SIGKILL)


def has_ended(held: HeldJob) -> bool:
    """Tell whether nobody of a job is left."""
    if held.cgroup and freezer.is_frozen(held.cgroup) is not None:
        return False
    return not any(state_of(one) for one in held.processes)
