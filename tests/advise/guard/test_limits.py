"""The guard's limits: the memory kept free, the room of each compiler, a shortage, what a sweep predicts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from wslgpud.advise.guard.past_runs import job_bytes, jobs_that_fit, key_of, short_name
from wslgpud.advise.guard.sweeping import SweepStep, predict, too_much
from wslgpud.advise.guard.tree import Process, reserve, to_stop
from wslgpud.advise.guard.usage import MemoryLeft, RunStats, Shortage, TreeMemory, most_bytes
from wslgpud.host import RecordedHost

GIB, MIB = 1 << 30, 1 << 20


@pytest.mark.parametrize(
    ("total", "kept"), [(4 * GIB, GIB // 2), (8 * GIB, GIB), (20 * GIB, GIB), (40 * GIB, 2 * GIB), (80 * GIB, 4 * GIB)]
)
def test_a_twentieth_of_ram_stays_free_or_more_on_small_machines(total, kept):
    assert reserve(total) == kept
    assert jobs_that_fit(kept + 2 * GIB, total, GIB, 99) == 2
    assert jobs_that_fit(kept + 2 * GIB - 1, total, GIB, 99) == 1


@pytest.mark.parametrize("name", ["cicc", "ptxas", "cudafe++"])
def test_cudas_compilers_do_not_count_where_there_is_no_nvcc(name):
    assert job_bytes({name: 8 * GIB}, None, nvcc=True) == 10 * GIB
    assert job_bytes({name: 8 * GIB}, None, nvcc=False) == 2 * GIB
    assert job_bytes({"cc1plus": 8 * GIB}, None, nvcc=False) == 10 * GIB


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["make", "all", "-j9"], "make all"),
        (["/usr/bin/ninja"], "ninja"),
        (["tool", "--token", "abc"], "tool"),
        (["python3", "/home/me/train.py", "--x"], "python3 train.py"),
    ],
)
def test_a_command_is_shown_with_its_script_or_target(command, name):
    assert short_name(command) == name


def test_long_commands_with_the_same_first_200_characters_match():
    assert key_of(["make", "x" * 194 + "y"]) != key_of(["make", "x" * 194 + "z"])
    assert key_of(["make", "x" * 195 + "y"]) == key_of(["make", "x" * 195 + "z"])


def compiler(pid: int, size: int, *, stopped: bool = False, ticks: int = 0) -> Process:
    return Process(pid, ticks or pid, "cc1plus", size, stopped)


def test_a_compiler_runs_as_long_as_there_is_just_room_to_grow():
    first, second = compiler(1, 4 * GIB), compiler(2, GIB)

    # The first is beyond the peak and may grow by a quarter, 1 GiB; the second by 2 GiB to the peak.
    assert to_stop([first, second], 4 * GIB, GIB, 3 * GIB) == ([], [])
    assert to_stop([first, second], 4 * GIB - 1, GIB, 3 * GIB) == ([second], [])
    waiting = compiler(2, GIB, stopped=True)
    assert to_stop([first, waiting], 4 * GIB, GIB, 3 * GIB) == ([], [waiting])
    assert to_stop([first, waiting], 4 * GIB - 1, GIB, 3 * GIB) == ([], [])


def test_the_biggest_runs_first_then_the_oldest_then_lowest_pid():
    young, old, other = compiler(9, 2 * GIB, ticks=9), compiler(7, GIB, ticks=1), compiler(8, GIB, ticks=2)

    assert to_stop([old, other, young], 0, 0, 2 * GIB) == ([old, other], [])
    # room for one to grow by 1 GiB, beside the biggest
    assert to_stop([other, old, young], GIB + GIB // 2, 0, 2 * GIB) == ([other], [])
    same = [compiler(pid, GIB, ticks=5) for pid in (3, 2)]
    assert to_stop(same, 0, 0, 2 * GIB) == ([same[0]], [])


@pytest.mark.parametrize(
    ("points", "value", "expected"),
    [
        ([], 4.0, None),
        ([(1.0, 10)], 4.0, None),
        ([(2.0, 10), (2.0, 12)], 4.0, None),
        ([(1.0, 10), (2.0, 14)], 4.0, 22),
        ([(2.0, 14), (1.0, 10)], 4.0, 22),
        ([(1.0, 10), (2.0, 11), (4.0, 21)], 6.0, 31),
        ([(1.0, 10), (2.0, 8)], 4.0, 8),
        ([(1.0, 10), (3.0, 14)], 2.0, 12),
        ([(1.0, 10), (2.0, 14)], 2.0, 14),
    ],
)
def test_memory_is_extrapolated_from_the_last_two_values(points, value, expected):
    assert predict(points, value) == expected


def steps(*values: tuple[str, int | None, int | None], code: int = 0) -> list[SweepStep]:
    return [SweepStep(value, code, 1.0, ram, vram) for value, ram, vram in values]


BOTH = steps(("1", 500 * MIB, 100 * MIB), ("2", 600 * MIB, 200 * MIB))


@pytest.mark.parametrize(
    ("known", "value", "ram", "vram", "why"),
    [
        (BOTH, "4", 840 * MIB, 420 * MIB, None),
        (BOTH, "4", 840 * MIB - 1, 420 * MIB, "4 would take 800 MiB of RAM, but only 840 MiB is free"),
        (BOTH, "4", 840 * MIB, 420 * MIB - 1, "4 would take 400 MiB of VRAM, but only 420 MiB is free"),
        (BOTH, "4", 840 * MIB, None, None),
        (BOTH, "large", 0, 0, None),
        (BOTH, "inf", 0, 0, None),
        (steps(("1", 500, 100), ("2", 600, 200), code=1), "4", 0, 0, None),
        (steps(("1", None, 100), ("2", None, 200)), "4", 0, None, None),
        (steps(("a", 500, 100), ("2", 600, 200)), "4", 0, 0, None),
    ],
)
def test_a_sweep_stops_before_a_value_that_will_not_fit(known, value, ram, vram, why):
    told = too_much(known, value, ram, vram)

    assert (told and str(told)) == (why and f"{why}: stopped before it")


@pytest.mark.parametrize(
    ("samples", "near"),
    [
        ([(0.0, 30)], False),
        ([(0.0, 29)], True),
        ([(0.0, 400), (5.0, 300)], True),
        ([(0.0, 400), (5.0, 301)], False),
        ([(0.0, 300), (2.5, 200)], True),
        ([(0.0, 300), (2.4, 200)], False),
        ([(0.0, 300), (5.0, 240)], False),
        ([(0.0, 300), (5.0, 239)], True),
        ([(0.0, 300), (1.0, 150), (10.0, 150)], True),
        ([(0.0, 300), (1.0, 150), (10.5, 150)], False),
        ([(0.0, 200), (5.0, 200)], False),
        ([(0.0, 100), (5.0, 200)], False),
    ],
)
def test_a_shortage_is_near_at_3_percent_or_20_seconds_left(samples, near):
    watch = Shortage()

    assert [watch.is_near(*sample, 1000) for sample in samples][-1] is near


def test_a_run_that_was_never_sampled_has_no_figures():
    figures = dataclasses.asdict(RunStats())

    assert figures.pop("biggest") == ("", 0)
    assert not any(figures.values())


def test_a_run_reports_its_last_highest_and_lowest_figures():
    stats = RunStats()
    for seconds, left, names, held in (
        (1.0, 50, {"make": 2, "cc1plus": 30}, 32),
        (2.0, 20, {"cc1plus": 20, "python3": 40}, 60),
        (3.0, 20, {"cc1": 5}, None),
        (4.0, 90, {}, 1),
    ):
        processes = [Process(pid, 1, name, size) for pid, (name, size) in enumerate(names.items(), 2)]
        stats.note(seconds, MemoryLeft(left, 100), processes, held)

    assert (stats.seconds, stats.total_bytes, stats.held_bytes, stats.peak_bytes) == (4.0, 100, 60, 60)
    assert (stats.least_available_bytes, stats.least_at_seconds) == (20, 2.0)
    assert (stats.biggest, stats.compilers, stats.compiler_bytes) == (("python3", 40), {"cc1plus": 30, "cc1": 5}, 30)


def machine(folder: Path, meminfo: str = "MemTotal: 1048576 kB\nSwapTotal: 1024 kB\n") -> RecordedHost:
    rollup = "Pss: 999 kB\nPss_Anon: 1024 kB\nPss_Shmem: 2048 kB\nSwapPss: 4096 kB\n"
    resident = "Pss_Anon: 7168 kB\nPss_Shmem: 0 kB\nSwapPss: 0 kB\n"
    for path, text in {"meminfo": meminfo, "2/smaps_rollup": rollup, "3/smaps_rollup": resident}.items():
        file = folder / "root/proc" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    links = {
        f"/proc/{pid}/exe": f"/bin/{name}" for pid, name in ((2, "python"), (3, "python"), (4, "python"), (5, "uv"))
    }
    (folder / "host.json").write_text(json.dumps({"wall": 1.0, "mono": 1.0, "links": links}))
    return RecordedHost(folder)


@pytest.mark.parametrize(
    ("sizes", "held"),
    [({2: 16}, 16), ({2: 16, 3: 16}, 7 + 7), ({2: 16, 3: 15}, 16 + 15), ({2: 16, 3: 16, 4: 20}, 7 + 7 + 20)],
)
def test_pages_shared_by_processes_of_a_program_are_counted_once(tmp_path, sizes, held):
    processes = [Process(pid, 1, "python3", size * MIB) for pid, size in sizes.items()]

    assert TreeMemory(machine(tmp_path)).now_bytes(processes) == held * MIB


def test_a_training_beside_its_launcher_is_known_at_each_sample(tmp_path):
    memory = TreeMemory(machine(tmp_path))
    processes = [Process(2, 1, "python3", 64 * MIB), Process(5, 1, "uv", 32 * MIB)]

    assert [memory.now_bytes(processes) for _ in range(3)] == [96 * MIB] * 3


def test_shared_memory_is_counted_once_but_not_for_compilers(tmp_path):
    memory = TreeMemory(machine(tmp_path))
    shared = [Process(2, 1, "python3", MIB, shared_bytes=16 * MIB), Process(9, 1, "a", 0, shared_bytes=16 * MIB)]
    compilers = [Process(pid, 1, "cc1plus", 32 * MIB) for pid in (2, 3)]

    assert memory.now_bytes([shared[0]]) == 17 * MIB
    assert memory.now_bytes(compilers) == 64 * MIB
    assert memory.now_bytes(shared) == (7 + 16) * MIB
    assert memory.now_bytes(shared) is None, "asked again at once"
    assert memory.now_bytes([shared[0]]) == 17 * MIB


@pytest.mark.parametrize(("swap", "most"), [("", GIB), ("SwapTotal: 1024 kB\n", GIB + MIB)])
def test_no_tree_holds_more_than_memory_and_swap(tmp_path, swap, most):
    host = machine(tmp_path, f"MemTotal: 1048576 kB\n{swap}")

    assert most_bytes(host) == most
    assert TreeMemory(host).now_bytes([Process(2, 1, "python3", most)]) == most
    assert TreeMemory(host).now_bytes([Process(2, 1, "python3", most + 1)]) is None
