"""How many jobs, and who may run: decided so that what has begun can end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wslgpud.advise.guard.past_runs import PastRuns, job_bytes, jobs_that_fit, key_of, limits, load, save
from wslgpud.advise.guard.tree import CXX_BYTES, NVCC_BYTES, Process, is_compiler, reserve, to_stop
from wslgpud.advise.guard.usage import RunStats, Shortage

GIB = 1 << 30
SIZES = st.integers(0, 64 * GIB)
COMPILERS = st.lists(
    st.builds(
        Process, st.integers(2, 9999), st.integers(0, 99), st.just("cc1plus"), st.integers(0, 8 * GIB), st.booleans()
    ),
    max_size=12,
    unique_by=lambda p: p.pid,
)


def test_as_many_jobs_as_fit_beside_what_the_rest_needs():
    assert jobs_that_fit(48 * GIB, 50 * GIB, 4 * GIB, 24) == 11
    assert jobs_that_fit(48 * GIB, 50 * GIB, 1 * GIB, 24) == 24
    assert jobs_that_fit(2 * GIB, 50 * GIB, 4 * GIB, 24) == 1


@given(SIZES, st.integers(1, 64 * GIB), st.integers(0, 8 * GIB), st.integers(1, 256))
def test_there_is_always_one_job_and_never_more_than_processors(available, total, each, processors):
    assert 1 <= jobs_that_fit(available, total, each, processors) <= processors
    assert 0 <= reserve(total) <= total / 8


def test_builds_get_the_job_limit_but_a_smaller_user_limit_stays():
    assert limits(6, {}) == {
        "MAX_JOBS": "6",
        "CMAKE_BUILD_PARALLEL_LEVEL": "6",
        "CARGO_BUILD_JOBS": "6",
        "MAKEFLAGS": "-j6",
    }
    mine = {"MAX_JOBS": "2", "CMAKE_BUILD_PARALLEL_LEVEL": "many", "MAKEFLAGS": "-k"}
    assert limits(6, mine)["MAX_JOBS"] == "2"
    assert limits(6, mine)["CMAKE_BUILD_PARALLEL_LEVEL"] == "6"
    assert limits(6, mine)["MAKEFLAGS"] == "-k -j6"
    assert "MAKEFLAGS" not in limits(6, {"MAKEFLAGS": "-j2"})
    assert "MAKEFLAGS" not in limits(6, {"MAKEFLAGS": " -j32 --jobserver-auth=3,4"})


@pytest.mark.parametrize("flags", ["-j32", "-j 32", "-j", "-k --jobs=32", "--jobs", "j32", "-j2 -j32"])
def test_a_make_told_to_use_all_processors_uses_what_fits(flags):
    assert limits(6, {"MAKEFLAGS": flags})["MAKEFLAGS"] == f"{flags} -j6"


def test_job_size_comes_from_its_past_or_else_from_its_compiler():
    assert job_bytes({}, None, nvcc=True) == NVCC_BYTES
    assert job_bytes({}, None, nvcc=False) == CXX_BYTES
    assert job_bytes({"cicc": 6 * GIB}, None, nvcc=True) == 7.5 * GIB
    assert job_bytes({"cicc": 6 * GIB}, None, nvcc=False) == CXX_BYTES
    assert job_bytes({"cicc": 6 * GIB}, GIB, nvcc=True) == 1.25 * GIB


def test_compilers_hold_memory_and_their_drivers_do_not():
    assert all(map(is_compiler, ("cc1plus", "cicc", "ptxas", "clang++-18", "ld.lld", "rustc")))
    assert not any(map(is_compiler, ("make", "ninja", "g++", "nvcc", "python3", "sh", "cmake")))


def test_a_command_is_remembered_without_its_folders():
    assert key_of(["/usr/bin/pip", "install", "/home/me/flash-attn"]) == "pip install flash-attn"


def test_the_newest_wait_while_there_is_no_room_for_all_to_grow():
    old, middle, new = (Process(i, i, "cc1plus", size) for i, size in ((1, 2 * GIB), (2, GIB), (3, 0)))

    stop, go = to_stop([new, middle, old], 4 * GIB, GIB, 3 * GIB)

    assert (stop, go) == ([new], [])


def test_who_waits_goes_on_once_there_is_room():
    old, waiting = Process(1, 1, "cc1plus", 2 * GIB), Process(2, 2, "cc1plus", GIB, stopped=True)

    assert to_stop([old, waiting], 3 * GIB, GIB, 3 * GIB) == ([], [])
    assert to_stop([waiting], 3 * GIB, GIB, 3 * GIB) == ([], [waiting])
    assert to_stop([old, waiting], 6 * GIB, GIB, 3 * GIB) == ([], [waiting])


@given(COMPILERS, SIZES, st.integers(0, 8 * GIB), st.integers(0, 8 * GIB))
def test_one_compiler_always_runs_and_nobody_is_told_twice(compilers, available, kept, peak):
    stop, go = to_stop(compilers, available, kept, peak)

    running = {p.pid for p in compilers if not p.stopped} - {p.pid for p in stop} | {p.pid for p in go}
    assert bool(running) == bool(compilers)
    assert all(not p.stopped for p in stop)
    assert all(p.stopped for p in go)


def test_shortage_is_little_left_or_a_fall_that_ends_soon():
    falling, calm = Shortage(), Shortage()

    assert [falling.is_near(t, (20 - 2 * t) * GIB, 64 * GIB) for t in range(5)] == [False] * 3 + [True] * 2
    assert not any(calm.is_near(t, 10 * GIB, 64 * GIB) for t in range(60))
    assert calm.is_near(60, GIB, 64 * GIB)
    assert not any(Shortage().is_near(t, (60 - 5 * t) * GIB, 64 * GIB) for t in range(5))


def test_what_was_learned_is_kept_and_a_corrupt_file_is_ignored(tmp_path):
    ledger = PastRuns()
    ledger.learn("make", RunStats(compilers={"cc1plus": GIB}), None)
    ledger.learn("make", RunStats(compilers={"cc1plus": GIB // 2}), None)
    save(tmp_path / "new", ledger)

    known = load(tmp_path / "new")
    assert known.compiler_bytes("make") == GIB // 2
    assert known.compilers == {"cc1plus": GIB * 3 // 4}
    assert load(tmp_path / "none") == PastRuns()
    for text in ("", "[]", '{"commands": 1, "compilers": {}}', '{"commands": {"a": 1}, "compilers": {}}'):
        (tmp_path / "guard.json").write_text(text)
        assert load(tmp_path) == PastRuns()
