"""Holding a job, letting it go on, and ending it: what is done once it is decided."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Collection, Sequence

from wslgpud.brake import grip, look
from wslgpud.brake.grip import Grip
from wslgpud.brake.jobs import Job, ProcessTree, Program, own_cgroup
from wslgpud.host import Host
from wslgpud.security.exact_signals import ExactProcess, send, state_of
from wslgpud.words import MessageLike, known, say

#: looks for children that have begun meanwhile; a job that still has new ones then is let go on
MOST_LOOKS = 20
#: how long a job has between TERM and KILL
TERM_SECONDS = 10.0

#: takes note of what is about to be held; returns why that cannot be, or nothing
TakesNote = Callable[[Grip], MessageLike]


def identities(members: Sequence[Program]) -> tuple[ExactProcess, ...]:
    return tuple(ExactProcess(*one.key, one.uid) for one in members if one.uid is not None)


def hold(host: Host, job: Job, users: Collection[int], note: TakesNote) -> tuple[Grip | None, MessageLike]:
    """Hold a job; return how, or why it goes on.

    What is held is noted before anybody is stopped, and whatever goes wrong, nobody stays so.
    """
    if folder := _own_group(host, job):
        held = Grip(identities(job.members), folder)
        if problem := note(held):
            return None, problem
        # One of another user's, or a kernel that cannot: process by process then.
        with contextlib.suppress(OSError):
            grip.set_frozen(folder, frozen=True)
            return held, ""
    return _stop_all(host, job, users, note)


def _stop_all(host: Host, job: Job, users: Collection[int], note: TakesNote) -> tuple[Grip | None, MessageLike]:
    held, waiting, roots = Grip(()), identities(job.members), {one.key for one in job.roots}
    for _ in range(MOST_LOOKS):
        held = Grip((*held.members, *waiting))
        if problem := note(held):
            grip.let_go(held)
            return None, problem
        problems = grip.stop_each(waiting)
        # Whoever has ended meanwhile is not missed; whoever may not be stopped must not go on alone.
        refused = [problem for one, problem in problems.items() if state_of(one)]
        if refused:
            grip.let_go(held)
            return None, known(refused[0])
        tree = ProcessTree(look.programs(host), {})
        # From each of them anew: one that has ended meanwhile has left its children to somebody else.
        seen = {(one.pid, one.start_ticks) for one in held.members}
        tops = [one for one in tree.by_pid.values() if one.key in seen or one.key in roots]
        waiting = identities([one for one in tree.members(tops, users) if one.key not in seen])
        if not waiting:
            return held, ""
        if len(held.members) + len(waiting) > grip.MOST_IDENTITIES:
            break
    grip.let_go(held)
    return None, say("it starts processes faster than they can be stopped")


def _own_group(host: Host, job: Job) -> str:
    """Return the folder of the cgroup that has the job in it and nobody else; empty where there is none."""
    pids = {one.pid for one in job.members}
    path = own_cgroup([look.group_of(pid, host) for pid in pids])
    folder = grip.folder_of(path) if path else ""
    inside = look.members_of(folder) if folder else None
    return folder if inside and inside <= pids else ""


def is_held(held: Grip) -> bool | None:
    """Tell whether a job still stands still; None where it has ended. False: somebody has let it go on."""
    if held.cgroup:
        return grip.is_frozen(held.cgroup)
    states = [state for one in held.members if (state := state_of(one))]
    # One that waits for a disk stands still as soon as that has answered.
    return all(state in "TtD" for state in states) if states else None


def terminate(held: Grip) -> None:
    """Ask all of a job to end, and let them go on to do so."""
    for one in held.members:
        send(one, signal.SIGTERM)
    grip.let_go(held)


def kill(host: Host, held: Grip, users: Collection[int]) -> None:
    """End all of a job that is left, and what it has started since."""
    inside = (look.members_of(held.cgroup) if held.cgroup else None) or set()
    now = ProcessTree(look.programs(host), {})
    keys = {(one.pid, one.start_ticks) for one in held.members}
    left = [one for one in now.by_pid.values() if one.key in keys or one.pid in inside]
    for one in identities(now.members(left, users, stopped=True)):
        send(one, signal.SIGKILL)


def ended(held: Grip) -> bool:
    """Tell whether nobody of a job is left."""
    if held.cgroup and grip.is_frozen(held.cgroup) is not None:
        return False
    return not any(state_of(one) for one in held.members)
