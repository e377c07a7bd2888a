"""A job is paused only for what it has taken itself: not for what went to nobody in the brake's reach."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.brake.trees import ALICE, BOB, GIB, MIB, program
from wslgpud.brake import fairness
from wslgpud.brake.fairness import Pools, ShortageStart, begun, outside_bytes, taken_bytes, taker
from wslgpud.brake.process_tree import ProcessTree, ScannedProcess

USERS = frozenset({ALICE})
CAPACITY = 16 * GIB


def shortage(*processes: ScannedProcess, left: int = 8 * GIB, **pools: object) -> ShortageStart:
    return begun(100.0, (left, CAPACITY), processes, USERS, Pools(**pools))  # type: ignore[arg-type]


def judged(since: ShortageStart, left: int, *now: ScannedProcess, job: int, files_of: str = "", **pools: object) -> str:
    """Return who took more than the job, empty where it is fair to pause it."""
    found = Pools(**pools)  # type: ignore[arg-type]
    outside = outside_bytes(since, since.left_bytes - left, now, USERS, found)
    members = [one for one in now if one.pid == job]
    tree = ProcessTree(now, since.own_bytes)
    return (
        ""
        if taken_bytes(since, tree, members, files_of, found) >= outside
        else taker(since, outside, now, USERS, found)
    )


TRAINING = program(20, 1, "python", GIB)


@pytest.mark.parametrize(
    ("took", "pools"),
    [
        ("files", {"files": 7 * GIB}),  # a memfd that is written and never mapped, or a tmpfs
        ("slab", {"slab": 6 * GIB}),  # inotify watches, sockets, files
        ("kernel", {}),  # pipes, socket buffers
    ],
)
def test_a_new_training_beside_an_unowned_hoard_is_left_alone(took, pools) -> None:
    """It grows by 200 MiB, all that is lost by then, after somebody has taken 7 GiB and holds them."""
    since = shortage(TRAINING)

    assert judged(since, 800 * MIB, TRAINING._replace(memory_bytes=GIB + 200 * MIB), job=20, **pools) == took


def test_the_control_a_training_that_takes_it_itself_is_paused() -> None:
    assert judged(shortage(TRAINING), 800 * MIB, TRAINING._replace(memory_bytes=8 * GIB), job=20) == ""


def test_a_training_beside_a_hoard_of_another_user_is_left_alone() -> None:
    others = program(30, 1, "hog", GIB, uid=BOB)
    now = TRAINING._replace(memory_bytes=GIB + 200 * MIB), others._replace(memory_bytes=8 * GIB)

    assert judged(shortage(TRAINING, others), 800 * MIB, *now, job=20) == "users"


def test_a_leak_beside_a_model_of_its_own_users_server_is_paused() -> None:
    """What jobs in the brake's reach took counts against nobody: their owners have agreed to it."""
    server = program(30, 1, "llama-server", 100 * MIB)
    now = TRAINING._replace(memory_bytes=2 * GIB), server._replace(memory_bytes=6 * GIB)

    assert judged(shortage(TRAINING, server), 900 * MIB, *now, job=20) == ""


def test_a_job_is_paused_for_its_own_ram_files_not_a_strangers() -> None:
    job = program(20, 1, "python", GIB, cgroup="/job.scope")
    since = shortage(job, files=GIB, job_files={"/job.scope": GIB})

    own = {"files": 8 * GIB, "job_files": {"/job.scope": 8 * GIB}}
    strangers = {"files": 8 * GIB, "job_files": {"/job.scope": GIB + 200 * MIB}}
    assert judged(since, 900 * MIB, job, job=20, files_of="/job.scope", **own) == ""
    assert judged(since, 900 * MIB, job, job=20, files_of="/job.scope", **strangers) == "files"


def test_shared_memory_that_every_loader_maps_counts_once() -> None:
    """Eight loaders map the same 100 MiB: that does not make up for 500 MiB of a stranger's."""
    loaders = [program(40 + n, 20, "python", 10 * MIB, shared_bytes=0) for n in range(8)]
    mapped = [one._replace(shared_bytes=100 * MIB) for one in loaders]

    assert (
        judged(shortage(TRAINING, *loaders), 8 * GIB - 600 * MIB, TRAINING, *mapped, job=40, files=600 * MIB) == "files"
    )


def test_a_daemon_started_late_blames_nobody_for_earlier_losses() -> None:
    since = shortage(TRAINING, left=1600 * MIB)  # 13.4 GiB of 16 are nobody's in reach

    assert judged(since, 800 * MIB, TRAINING._replace(memory_bytes=GIB + 800 * MIB), job=20) == "kernel"
    large = program(20, 1, "python", 12 * GIB)
    assert (
        judged(shortage(large, left=1600 * MIB), 800 * MIB, large._replace(memory_bytes=12 * GIB + 800 * MIB), job=20)
        == ""
    )


sizes = st.integers(0, 8 * GIB)


@given(sizes, sizes, sizes)
def test_no_job_is_paused_for_less_than_went_out_of_reach(grown: int, hoard: int, slab: int) -> None:
    now = TRAINING._replace(memory_bytes=GIB + grown)
    left = 8 * GIB - grown - hoard - slab
    unfair = judged(shortage(TRAINING), left, now, job=20, files=hoard, slab=slab)

    assert (unfair == "") is (grown >= hoard + slab)
    assert fairness.BEGINS_RATIO == 0.5
