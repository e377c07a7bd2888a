"""Hand-made process trees."""

from __future__ import annotations

from collections.abc import Mapping

from wslgpud.brake.culprit import Job, NotPaused, growing_job
from wslgpud.brake.process_tree import ProcessKey, ProcessTree, ScannedProcess

MIB, GIB = 1 << 20, 1 << 30
ALICE, BOB = 1000, 1001
INIT = ScannedProcess(1, 1, 0, 0, "systemd", 10 * MIB)


def program(
    pid: int, parent: int, name: str, held: int = 10 * MIB, uid: int | None = ALICE, **more: object
) -> ScannedProcess:
    return ScannedProcess(pid, pid * 10, parent, uid, name, held)._replace(**more)  # type: ignore[arg-type]


def chosen(
    now: list[ScannedProcess],
    before: Mapping[int, int] | None = None,
    lost: int = GIB,
    users: frozenset[int] = frozenset({ALICE}),
    **more: object,
) -> Job | NotPaused:
    """Return the job the brake would pause, given earlier memory by pid; the other processes have not grown."""
    held: dict[ProcessKey, int] = {one.key: (before or {}).get(one.pid, one.memory_bytes) for one in (INIT, *now)}
    return growing_job(ProcessTree([INIT, *now], held, ours={99}), users, lost, **more)  # type: ignore[arg-type]


def pids(found: Job | NotPaused) -> set[int] | str:
    return {one.pid for one in found.members} if isinstance(found, Job) else found
