"""The brake selects the growing job, all of it and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.brake.trees import ALICE, BOB, GIB, INIT, MIB, chosen, pids, program
from wslgpud.brake import process_tree
from wslgpud.brake.culprit import (
    JOB_SHARE,
    MAX_MEMBERS,
    Baseline,
    Job,
    NotPaused,
    ResourceUse,
    filling_job,
    growing_job,
    job_of_pid,
    narrowed,
)
from wslgpud.brake.process_tree import ProcessTree, ScannedProcess, charged
from wslgpud.host import Host
from wslgpud.model import Forecast, Level

SHELL = program(10, 1, "bash")


def test_a_leak_is_paused_and_a_larger_program_beside_it_is_not() -> None:
    leak, large = program(20, 10, "python", 2 * GIB), program(21, 10, "python", 40 * GIB)

    assert pids(chosen([SHELL, leak, large], {20: GIB})) == {20}


def test_a_training_is_paused_with_its_loaders() -> None:
    loaders = [program(30 + n, 20, "python", 300 * MIB) for n in range(4)]

    assert pids(chosen([SHELL, program(20, 10, "python", 5 * GIB), *loaders], {20: 4 * GIB})) == {20, 30, 31, 32, 33}


def test_make_and_its_compilers_are_paused_but_not_their_shells() -> None:
    make = program(20, 10, "make")
    shells = [program(100 + n, 20, "sh") for n in range(10)]
    compilers = [program(200 + n, 100 + n, "cc1plus", 200 * MIB) for n in range(10)]
    found = chosen([SHELL, make, *shells, *compilers], dict.fromkeys(range(200, 210), 50 * MIB))

    assert pids(found) == {20, *range(200, 210)}


def test_twenty_workers_of_one_shell_are_one_job() -> None:
    workers = [program(100 + n, 10, "worker", 100 * MIB) for n in range(20)]
    other = program(50, 10, "innocent", 8 * GIB)

    assert pids(chosen([SHELL, other, *workers], dict.fromkeys(range(100, 120), 10 * MIB))) == {*range(100, 120)}


def test_a_same_named_worker_that_stopped_growing_is_not_paused() -> None:
    idle, leak = program(20, 10, "python", 4 * GIB), program(21, 10, "python", 4 * GIB)

    def since(idle_before: int, leak_before: int) -> Job | NotPaused:
        return chosen([SHELL, idle, leak], {20: idle_before, 21: leak_before}, lost=4 * GIB - leak_before)

    overall, lately = since(2 * GIB, 2 * GIB), since(4 * GIB, 3 * GIB)
    assert pids(overall) == {20, 21}
    assert pids(lately) == pids(narrowed(overall, lately, GIB)) == {21}
    assert pids(narrowed("several", lately, 0)) == pids(narrowed("nobody", lately, 0)) == {21}
    assert pids(narrowed(overall, "nobody", 0)) == {20, 21}
    assert pids(narrowed(lately, overall, GIB)) == {21}, "the job of the whole window still grows"
    assert narrowed("user", lately, 0) == "user"


@pytest.mark.parametrize(("lately_mib", "paused"), [(0, 21), (9, 21), (11, 20)])
def test_a_program_done_loading_is_not_paused_for_a_leak(lately_mib, paused) -> None:
    loaded, leak = program(20, 10, "python", 6 * GIB), program(21, 10, "julia", GIB)
    overall = chosen([SHELL, loaded, leak], {20: 0, 21: GIB - 100 * MIB})
    lately = chosen([SHELL, loaded, leak], {20: 6 * GIB - lately_mib * MIB, 21: GIB - 100 * MIB}, lost=100 * MIB)

    assert (pids(overall), pids(lately)) == ({20}, {21})
    assert pids(narrowed(overall, lately, lately_mib * MIB)) == {paused}


def test_two_unrelated_programs_growing_equally_are_not_paused() -> None:
    both = [program(20, 10, "python", 2 * GIB), program(21, 10, "julia", 2 * GIB)]

    assert chosen([SHELL, *both], {20: GIB, 21: GIB}) == "several"


def test_the_largest_program_is_not_paused_if_tmpfs_took_memory() -> None:
    assert chosen([SHELL, program(20, 10, "python", 40 * GIB)], lost=2 * GIB) == "nobody"


def test_no_job_is_paused_if_headroom_has_not_shrunk() -> None:
    assert chosen([SHELL, program(20, 10, "python", 2 * GIB)], {20: GIB}, lost=-1) == "nobody"


def test_nobody_is_paused_if_another_users_program_grows_most() -> None:
    theirs, own = program(20, 1, "python", 5 * GIB, BOB), program(21, 10, "python", GIB)

    assert chosen([SHELL, theirs, own], {20: GIB, 21: 900 * MIB}, lost=4 * GIB) == "user"


def test_equal_workers_are_not_paused_if_one_is_another_users() -> None:
    own, theirs = program(20, 10, "python", 2 * GIB), program(21, 10, "python", 2 * GIB, BOB)

    assert chosen([SHELL, own, theirs], {20: GIB, 21: GIB}, lost=2 * GIB) == "user"


def test_a_job_with_a_hidden_parent_is_paused_with_its_children() -> None:
    assert pids(chosen([program(20, 5, "python", 3 * GIB), program(21, 20, "python")], {20: 2 * GIB})) == {20, 21}


def test_only_the_first_process_is_protected_by_its_number() -> None:
    assert program(1, 0, "python").is_protected
    assert pids(chosen([program(2, 1, "python", 2 * GIB)], {2: GIB})) == {2}


def test_a_process_with_privileges_of_several_users_is_not_ours() -> None:
    assert chosen([program(20, 1, "helper", 5 * GIB, None)], {20: GIB}) == "user"


@pytest.mark.parametrize(
    "name", ["bash", "-zsh", "sshd", "sshd-session", "systemd-journal", "tmux: server", "gnome-shell", "Xwayland"]
)
def test_shells_logins_and_desktops_are_never_paused(name: str) -> None:
    assert chosen([program(20, 1, name, 5 * GIB)], {20: GIB}, lost=4 * GIB) == "protected"


@pytest.mark.parametrize("name", ["dockerd", "containerd-shim", "postgres", "redis-server", "(sd-pam)", "Relay(9)"])
def test_container_engines_and_databases_are_never_paused(name: str) -> None:
    assert chosen([program(20, 1, name, 5 * GIB)], {20: GIB}, lost=4 * GIB) == "protected"


def test_a_process_cannot_lose_its_protection_by_renaming_itself() -> None:
    posing = program(20, 1, "python", 5 * GIB, program="postgres")

    assert chosen([posing], {20: GIB}, lost=4 * GIB) == "protected"


def test_children_of_a_protected_program_in_a_job_are_not_paused() -> None:
    job, screens = program(20, 10, "python", 5 * GIB), program(30, 20, "tmux: server")

    assert pids(chosen([SHELL, job, screens, program(31, 30, "vim")], {20: GIB}, lost=4 * GIB)) == {20}


def test_the_daemon_itself_is_never_paused() -> None:
    assert chosen([program(99, 1, "python", 5 * GIB)], {99: GIB}, lost=4 * GIB) == "protected"


def test_a_process_already_stopped_is_not_part_of_the_job() -> None:
    job, stopped = program(20, 10, "python", 5 * GIB), program(21, 20, "python", stopped=True)

    assert pids(chosen([SHELL, job, stopped], {20: GIB}, lost=4 * GIB)) == {20}


def test_growth_is_all_of_a_new_process_and_never_negative() -> None:
    grown, shrunk, new = program(20, 1, "make", 5), program(21, 1, "ld", 3), program(22, 1, "cc1plus", 4)
    tree = ProcessTree([grown, shrunk, new], {grown.key: 2, shrunk.key: 9})

    assert [tree.growth_bytes(one) for one in (grown, shrunk, new)] == [3, 0, 4]


def test_pages_shared_after_a_fork_are_no_growth_of_the_child() -> None:
    server = program(20, 10, "server", 4 * GIB)
    forks = [program(30 + n, 20, "server", 4 * GIB) for n in range(8)]
    leak = program(40, 10, "python", 3 * GIB)
    before = {one.key: one.memory_bytes for one in (INIT, SHELL, server)} | {leak.key: GIB}
    found = growing_job(ProcessTree([INIT, SHELL, server, *forks, leak], before), {ALICE}, 2 * GIB)

    assert pids(found) == {40}


def test_for_a_cgroup_only_its_own_processes_count() -> None:
    inside, outside = program(20, 10, "python", 2 * GIB), program(21, 10, "julia", 20 * GIB)

    assert pids(chosen([SHELL, inside, outside], {20: GIB, 21: GIB}, among={20})) == {20}


def test_a_job_with_too_many_processes_is_left_alone() -> None:
    crowd = [program(1000 + n, 20, "python") for n in range(MAX_MEMBERS)]

    assert chosen([SHELL, program(20, 10, "python", 5 * GIB), *crowd], {20: GIB}, lost=4 * GIB) == "crowd"


def test_a_process_the_gpu_driver_names_is_paused_with_children() -> None:
    tree = ProcessTree(
        [INIT, SHELL, program(20, 10, "python"), program(21, 20, "python"), program(22, 10, "python")], {}
    )

    assert pids(job_of_pid(tree, {ALICE}, 20)) == {20, 21}
    assert job_of_pid(tree, {ALICE}, 10) == "protected"
    assert job_of_pid(tree, {BOB}, 20) == "user"
    assert job_of_pid(tree, {ALICE}, 4242) == "nobody"


names = st.sampled_from(["python", "cc1plus", "bash", "sh", "make", "systemd", "postgres", "tmux: server", "node"])
uids = st.sampled_from([0, ALICE, ALICE, ALICE, BOB, None])


@st.composite
def looks(draw: st.DrawFn) -> tuple[list[ScannedProcess], dict[tuple[int, int], int], int]:
    """Draw processes, including missing parents, loops and forks; their earlier memory; and the headroom lost."""
    found = [
        ScannedProcess(
            pid,
            draw(st.integers(0, 50)),
            draw(st.integers(0, 14)),
            draw(uids),
            draw(names),
            draw(st.integers(0, 20)) * 100 * MIB,
            stopped=draw(st.booleans()),
        )
        for pid in draw(st.lists(st.integers(1, 14), unique=True, max_size=14))
    ]
    before = {one.key: draw(st.integers(0, 20)) * 100 * MIB for one in found if draw(st.booleans())}
    return found, before, draw(st.integers(-1, 40)) * 100 * MIB


@given(looks())
def test_only_unprotected_programs_of_listed_users_are_paused(look) -> None:
    now, before, lost = look
    tree = ProcessTree(now, before, ours={7})
    found = growing_job(tree, {ALICE}, lost)
    if isinstance(found, Job):
        assert found.members
        assert all(one.uid == ALICE and one.pid not in (1, 7) and not one.stopped for one in found.members)
        assert not any(one.is_shell or one.is_protected for one in found.members)
        below = {one.pid for root in found.roots for one in tree.subtree(root)}
        assert {one.pid for one in found.members} <= below
        assert sum(tree.growth_bytes(tree.by_pid[pid]) for pid in below) >= JOB_SHARE * sum(map(tree.growth_bytes, now))


def below_all(now: list[ScannedProcess], found: Job) -> list[ScannedProcess]:
    tree = ProcessTree(now, {})
    return [one for root in found.roots for one in tree.subtree(root)]


@given(looks())
def test_another_users_programs_never_cause_a_pause_of_ours(look) -> None:
    now, before, lost = look
    without = [one for one in now if one.uid == ALICE]
    found = growing_job(ProcessTree(now, before), {ALICE}, lost)
    # Only jobs that are not below another user's program can be compared: their roots differ otherwise.
    if isinstance(found, Job) and all(
        one.uid == ALICE for root in found.roots for one in ProcessTree(now, before).subtree(root)
    ):
        rest = ProcessTree(without, before)
        assert sum(map(rest.growth_bytes, rest.by_pid.values())) >= JOB_SHARE * found.growth_bytes


def test_an_editors_remote_server_is_recognised_by_its_path() -> None:
    for path in ("/home/a/.vscode-server/bin/0a1b/node", "/home/a/.cursor-server/cli/servers/x/server/node"):
        assert ScannedProcess(5, 50, 1, ALICE, "node", 0, process_tree._program(path)).is_protected
    assert process_tree._program("/usr/bin/node (deleted)") == "node"


@pytest.mark.parametrize(
    ("beside", "paused"),
    [
        (program(31, 30, "cp"), {30, 31}),
        (program(31, 30, "bash"), "protected"),
        (program(31, 30, "tmux: server"), "protected"),
        (program(31, 30, "cp", uid=BOB), {30}),
    ],
    ids=["its own child", "a shell", "a multiplexer", "another user's program"],
)
def test_a_cgroup_filling_tmpfs_is_paused_unless_it_has_a_shell(beside, paused, scope: Path) -> None:
    """Which of its processes wrote the files is unknown."""
    inside = [one._replace(cgroup="/job.scope") for one in (program(30, 10, "rsync"), beside)]
    others = [SHELL, program(40, 10, "python")]
    before = {one.key: one.memory_bytes + one.shared_bytes for one in (INIT, *others, *inside)}
    (scope / "memory.stat").write_text(f"anon 5\nshmem {GIB}\nshmem_thp 0\n")
    now = charged(Host(str(scope.parents[1])), [INIT, *others, *inside], {ALICE})
    found = growing_job(ProcessTree([one.with_shared() for one in now], before), {ALICE}, GIB)

    assert pids(found) == paused
    if isinstance(found, Job):
        assert found.growth_bytes == GIB


@pytest.fixture
def scope(tmp_path: Path) -> Path:
    """Return the folder of a cgroup on a machine."""
    folder = tmp_path / "cgroup/job.scope"
    folder.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_text("none /cgroup cgroup2 rw 0 0\n")
    return folder


def test_files_in_ram_count_for_one_process_of_their_cgroup(scope: Path) -> None:
    (scope / "memory.stat").write_text("shmem 4096\n")
    (scope.parent / "memory.stat").write_text("shmem 1\n")
    names = {20: "/job.scope", 21: "/job.scope", 22: "/gone.scope", 23: "/..", 24: "", 25: "/"}
    now = [program(pid, 1, "python", shared_bytes=100, cgroup=name) for pid, name in names.items()]
    own = charged(Host(str(scope.parents[1])), now, {ALICE})
    theirs = charged(Host(str(scope.parents[1])), now, {BOB})

    assert [one.shared_bytes for one in own] == [4096, 100, 100, 100, 100, 100]
    assert theirs == tuple(now)


def measured(left: int, before: int, processes: list[ScannedProcess], held_before: int) -> ResourceUse:
    then = Baseline(90.0, {"ram": before}, {one.key: held_before for one in processes}, {})
    return ResourceUse(100.0, Forecast("ram", Level.CRITICAL, left, 16 * GIB), processes, then, then)


@pytest.mark.parametrize(("lost_gib", "paused"), [(2, {20}), (6, "nobody")])
def test_a_job_must_account_for_half_of_what_was_lost(lost_gib: int, paused: object) -> None:
    held = measured(GIB, (1 + lost_gib) * GIB, [program(20, 10, "python", 2 * GIB)], GIB)
    found = filling_job(held, {ALICE}, ())

    assert pids(found) == paused
    if isinstance(found, Job):
        assert (found.growth_bytes, found.growth_seconds) == (GIB, 10.0)
