"""The worker finds memory faults, and reports nothing else; on a CPU, where faults can be planted."""

from __future__ import annotations

import ast
import sys
import threading
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wslgpud.stress.parent import WORKER
from wslgpud.stress.stress_run import PASSES

MIB = 1 << 20
WORDS = MIB  # in a chunk of 8 MiB
CHUNKS = 6
ALL = PASSES["nightly"]


def test_it_needs_nothing_but_torch_and_the_standard_library():
    nodes = [node for file in WORKER.glob("*.py") for node in ast.walk(ast.parse(file.read_text()))]
    names = {n.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for n in node.names}
    parts = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    names |= {part.module.split(".")[0] for part in parts if not part.level}

    assert names - set(sys.stdlib_module_names) == {"torch"}
    assert {part.module for part in parts if part.level} == {file.stem for file in WORKER.glob("[c-p]*.py")} - {"main"}


def test_a_sound_memory_passes_every_phase(run):
    done = run(ladder=[10 * MIB, 50 * MIB, 60 * MIB])

    assert done.result.verdict == "passed"
    assert [row["phase"] for row in done.of("phase")] == [
        "ladder",
        "fill",
        "bandwidth",
        "patterns",
        "beyond",
        "soak",
        "release",
    ]
    assert [row["outcome"] for row in done.of("rung")] == ["ok", "ok", "too large"]


def test_what_is_verified_is_counted_by_the_checks_made(run):
    done = run()
    taken = done.of("filled")[0]["bytes"]

    assert taken == 52 * MIB
    assert {row["name"]: row["verified"] // taken for row in done.of("pattern") if row["name"] != "move"} == {
        "solid": 2,
        "checkerboard": 2,
        "walking": 16,
        "address": 1,
        "random": 1,
        "modulo": 2,
        "retention": 1,
    }
    assert done.result.values["verified_bytes"] == taken


def test_memory_that_was_not_reached_is_not_called_verified(run, faulty, monkeypatch):
    monkeypatch.setattr(faulty.card, "LOOK_SECONDS", 0.0)
    done = run({"foreign": ["solid", 500 * MIB]})

    assert done.left == {"why": "taken", "facts": {"taken_bytes": 500 << 20}}
    assert "verified_bytes" not in done.result.values
    assert done.result.verdict == "left"


def test_twenty_runs_over_sound_memory_report_nothing(run):
    done = run(passes=ALL * 20, cpu_bytes=30 * MIB)

    assert len(done.of("pattern")) == 160
    assert done.of("bad") == []


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("chunk", "word"), [(0, 0), (2, WORDS - 1)], ids=["first word", "last word"])
def test_a_flipped_bit_is_found_wherever_it_is(run, name, chunk, word):
    mask = 1 << 63
    done = run({"flips": [[name, chunk, word, mask]]}, passes=[name])
    [bad] = done.of("bad")
    [sample] = bad["samples"]

    found_in = chunk + 1 if name == "move" else chunk  # it was copied along
    assert (bad["chunk"], sample["word"], bad["words"]) == (found_in, word, 1)
    assert int(sample["expected"], 16) ^ int(sample["got"], 16) == mask
    assert done.result.detail["errors"][0]["class"] == "cell"
    assert done.result.verdict == "findings"


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from([name for name in ALL if name != "move"]),
    chunk=st.integers(0, CHUNKS - 1),
    word=st.integers(0, WORDS - 1),
    mask=st.integers(1, (1 << 64) - 1),
)
def test_any_flip_is_found_with_its_place_and_its_bits(run, name, chunk, word, mask):
    done = run({"flips": [[name, chunk, word, mask]]}, passes=[name], repeats=1)
    [bad] = done.of("bad")
    [sample] = bad["samples"]

    assert (bad["chunk"], sample["word"]) == (chunk, word)
    assert int(sample["expected"], 16) ^ int(sample["got"], 16) == mask
    assert bad["flips"] == {len(f"{mask:b}".replace("0", "")): 1}


def test_a_flip_at_the_far_end_of_a_large_chunk_is_placed(run, faulty, monkeypatch):
    monkeypatch.setattr(faulty.patterns, "PART_WORDS", 1 << 10)  # a thousand parts, as of 8 GiB
    [bad] = run({"flips": [["solid", 1, WORDS - 1, 4]]}, passes=["solid"]).of("bad")

    assert bad["samples"][0]["word"] == WORDS - 1


def test_a_soak_goes_on_with_part_of_the_memory(run, faulty, monkeypatch):
    monkeypatch.setattr(faulty.phases, "SOAK_PAUSE_SECONDS", 0.0)
    done = run(passes=["solid"], soak_seconds=0.5)
    [row] = [row for row in done.of("pattern") if row["name"] == "soak"]
    taken = done.of("filled")[0]["bytes"]

    assert row["checks"] >= 1
    assert row["verified"] / row["checks"] <= 0.65 * taken
    assert row["bad_words"] == 0
    assert done.result.values["verified_bytes"] == taken


def test_a_flip_during_the_soak_is_found(run):
    done = run({"flips": [["soak", 0, 5, 1 << 20]]}, passes=[], soak_seconds=0.05)

    assert [(bad["pattern"], bad["samples"][0]["word"]) for bad in done.of("bad")] == [("soak", 5)]
    assert done.result.verdict == "findings"


def test_a_bit_that_cannot_change_is_told_from_one_that_was_lost(run):
    done = run({"stuck": [[2, 77, 1 << 9]]})

    assert {row["class"] for row in done.result.detail["errors"]} == {"stuck"}
    assert {row["samples"][0]["word"] for row in done.of("bad") if row["samples"]} == {77}
    assert done.of("bad")[0]["samples"][0]["stuck"] == f"{1 << 9:016x}"
    assert {row["pattern"] for row in done.of("bad")} >= {"solid", "walking", "checkerboard"}


def test_chunks_that_share_cells_are_called_an_address_fault(run):
    done = run({"alias": {"3": 1}})
    [located] = done.of("located")

    assert located["chunk"] == 1
    assert located["belongs"][0][0] == 3
    assert {row["class"] for row in done.result.detail["errors"] if "class" in row} == {"address"}


def test_chunks_that_swap_contents_are_called_an_address_fault(run):
    done = run({"swap": [["address", 0, 4]]})
    homes = {bad["chunk"]: bad["samples"][0]["belongs"] for bad in done.of("bad")}

    assert homes == {0: [4, 0], 4: [0, 0]}
    assert {row["class"] for row in done.result.detail["errors"] if "class" in row} == {"address"}


def test_a_broken_card_does_not_fill_the_disk_with_reports(run):
    done = run({"stuck": [[chunk, 5, 1] for chunk in range(CHUNKS)]}, passes=ALL * 3)
    detailed = [bad for bad in done.of("bad") if bad["samples"]]

    assert len(detailed) <= 32
    assert {row["class"] for row in done.result.detail["errors"]} == {"stuck"}
    assert all(len(bad["samples"]) <= 32 for bad in detailed)


def test_one_bad_chunk_does_not_hide_another(run):
    stuck = {"stuck": [[2, 77, 1 << 9]], "flips": [["retention", 4, 9, 2]]}
    done = run(stuck, passes=ALL * 3)
    found = {(row["chunk"], row["class"]) for row in done.result.detail["errors"] if row["samples"]}

    assert {(2, "stuck"), (4, "cell")} <= found


def test_a_refused_allocation_is_not_tried_again(run):
    done = run({"refuse": 3})
    [filled] = done.of("filled")

    assert filled["chunks"] == len(done.of("chunk")) == 3
    assert done.result.verdict == "passed"
    assert done.result.detail["refused"] == filled["refused"] == "CUDA out of memory. Tried to allocate 2.00 GiB"


def test_a_run_that_got_no_memory_has_not_passed(run, faulty):
    with pytest.raises(faulty.torch.OutOfMemoryError):  # "refused", says its last line
        run({"refuse": 0})
    nothing_left = run(reserve=60 * MIB)

    assert (nothing_left.left["why"], nothing_left.result.verdict) == ("scarce", "left")


def test_a_run_whose_memory_others_took_first_has_not_passed(run, faulty, monkeypatch):
    def taken(worker):
        worker.job = replace(worker.job, reserve=worker.job.cpu_bytes)

    monkeypatch.setattr(faulty.Faulty, "ladder", taken, raising=False)

    assert run().left["why"] == "scarce"


def test_it_leaves_at_once_when_told_to(run):
    stop = threading.Event()
    stop.set()

    assert run(stop=stop).left["why"] == "told"


def test_it_leaves_when_everything_becomes_slow(run, faulty, monkeypatch):
    monkeypatch.setattr(faulty.card, "SLOW_SECONDS", 0.0)

    assert run(slow_ratio=1e9).left["why"] == "slow"
