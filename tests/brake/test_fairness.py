"""A job is paused only for what it has taken itself: not for what went to nobody in the brake's reach."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.brake.trees import ALICE, BOB, GIB, MIB, program
from wslgpud.brake.culprit import BEGINS_RATIO, Baseline, Job, ResourceUse, ShortageStart, is_fair
from wslgpud.brake.process_tree import ScannedProcess
from wslgpud.model import Forecast, Level

USERS = frozenset({ALICE})
CAPACITY = 16 * GIB


def shortage(*processes: ScannedProcess, left: int = 8 * GIB) -> ShortageStart:
    return ShortageStart(left, processes)


def fair(began: ShortageStart, left: int, *now: ScannedProcess, job: int) -> bool:
    """Return whether it is fair to pause a process."""
    (member,) = (one for one in now if one.pid == job)
    then = Baseline(90.0, {}, {}, {})
    held = ResourceUse(100.0, Forecast("ram", Level.CRITICAL, left, CAPACITY), now, then, then, began)
    return is_fair(Job((member,), 0, (member,)), held, began, USERS)


TRAINING = program(20, 1, "python", GIB)


def test_a_new_training_beside_an_unowned_hoard_is_left_alone() -> None:
    """It grows by 200 MiB, all that is lost by then, after somebody has taken 7 GiB and holds them.

    A memfd that is written and never mapped, a tmpfs, inotify watches, pipes, socket buffers: no process holds them.
    """
    assert not fair(shortage(TRAINING), 800 * MIB, TRAINING._replace(memory_bytes=GIB + 200 * MIB), job=20)


def test_the_control_a_training_that_takes_it_itself_is_paused() -> None:
    assert fair(shortage(TRAINING), 800 * MIB, TRAINING._replace(memory_bytes=8 * GIB + 300 * MIB), job=20)


def test_a_training_beside_a_hoard_of_another_user_is_left_alone() -> None:
    others = program(30, 1, "hog", GIB, uid=BOB)
    now = TRAINING._replace(memory_bytes=GIB + 200 * MIB), others._replace(memory_bytes=8 * GIB)

    assert not fair(shortage(TRAINING, others), 800 * MIB, *now, job=20)


def test_a_leak_beside_a_model_of_its_own_users_server_is_paused() -> None:
    """What jobs in the brake's reach took counts against nobody: their owners have agreed to it."""
    server = program(30, 1, "llama-server", 100 * MIB)
    now = TRAINING._replace(memory_bytes=2 * GIB), server._replace(memory_bytes=6 * GIB)

    assert fair(shortage(TRAINING, server), 900 * MIB, *now, job=20)


def test_a_job_is_paused_for_its_own_ram_files_not_a_strangers() -> None:
    job = program(20, 1, "python", GIB, cgroup="/job.scope", shared_bytes=GIB)
    since = shortage(job)

    assert fair(since, 900 * MIB, job._replace(shared_bytes=8 * GIB + 200 * MIB), job=20)
    assert not fair(since, 900 * MIB, job._replace(shared_bytes=GIB + 200 * MIB), job=20)


def test_shared_memory_that_every_loader_maps_counts_once() -> None:
    """Eight loaders map the same 100 MiB: that does not make up for 500 MiB of a stranger's."""
    loaders = [program(40 + n, 20, "python", 10 * MIB, shared_bytes=0) for n in range(8)]
    mapped = [one._replace(shared_bytes=100 * MIB) for one in loaders]

    assert not fair(shortage(TRAINING, *loaders), 8 * GIB - 600 * MIB, TRAINING, *mapped, job=40)


def test_a_daemon_started_late_blames_nobody_for_earlier_losses() -> None:
    since = shortage(TRAINING, left=1600 * MIB)  # 13.4 GiB of 16 are nobody's in reach

    assert not fair(since, 800 * MIB, TRAINING._replace(memory_bytes=GIB + 800 * MIB), job=20)
    large = program(20, 1, "python", 12 * GIB)
    grown = large._replace(memory_bytes=12 * GIB + 800 * MIB)
    assert fair(shortage(large, left=1600 * MIB), 800 * MIB, grown, job=20)


sizes = st.integers(0, 8 * GIB)


@given(sizes, sizes)
def test_no_job_is_paused_for_less_than_went_out_of_reach(grown: int, hoard: int) -> None:
    now = TRAINING._replace(memory_bytes=GIB + grown)

    assert fair(shortage(TRAINING), 8 * GIB - grown - hoard, now, job=20) is (grown >= hoard)
    assert BEGINS_RATIO == 0.5
