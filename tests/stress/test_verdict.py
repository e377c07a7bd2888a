"""The meaning of the worker's lines."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stress.support import gpu
from wslgpud.stress.result import Frame, WorkerOutput, classify_chunks, classify_error, digest
from wslgpud.words import say

CHUNK = 256 << 20
CARD, BUS = 896e9, 26e9


def row(rate, index=0):
    return {"index": index, "bytes": CHUNK, "sweep": 2, **dict.fromkeys(("write", "change", "read"), CHUNK / rate)}


@given(spilled=st.sets(st.integers(8, 59), max_size=30), seed=st.integers())
def test_exactly_the_chunks_behind_pcie_are_called_spilled(spilled, seed):
    noise = random.Random(seed)
    rows = [row((BUS if i in spilled else CARD) * noise.uniform(0.93, 1.07), i) for i in range(60)]

    assert {i for i, kind in enumerate(classify_chunks(rows)) if kind == "spilled"} == spilled
    assert all(kind == "dedicated" for i, kind in enumerate(classify_chunks(rows)) if i not in spilled)


@pytest.mark.parametrize(("card", "bus"), [(360e9, 12e9), (896e9, 26e9), (4800e9, 52e9)])
def test_a_chunk_with_a_tenth_moved_out_counts_as_spilled(card, bus):
    mixed = 1 / (0.9 / card + 0.1 / bus)
    rows = [row(card)] * 40 + [row(mixed)]

    assert classify_chunks(rows)[-1] == "spilled"


def test_the_first_eight_chunks_or_a_quarter_set_the_measure():
    fast = [row(1000e9)] * 4 + [row(800e9)] * 30 + [row(730e9), row(715e9)]

    assert classify_chunks(fast)[-3:] == ["dedicated", "dedicated", "degraded"]
    assert classify_chunks([row(1000e9), row(790e9)]) == ["dedicated", "degraded"]


def test_a_load_that_slows_everything_is_no_spill():
    rows = [row(CARD * random.Random(i).choice([0.2, 0.25, 0.3]), i) for i in range(40)] + [row(CARD, 40)] * 2

    assert set(classify_chunks(rows)) == {"contended"}


def test_nothing_measured_is_nothing_said():
    result = digest(WorkerOutput([], "the worker was killed by SIGSEGV"), Frame(1.0, gpu(), {}))

    assert (result.verdict, result.reason) == ("failed", "the worker was killed by SIGSEGV")
    assert classify_chunks([]) == []
    assert not result.values.keys() & {"usable_bytes", "verified_bytes", "checked_bytes"}
    assert result.values["duration_seconds"] == 0
    assert "spec_bytes" not in digest(WorkerOutput([]), Frame(1.0, gpu(total_bytes=None), {})).values


def bad(samples, flips, chunk=3):
    texts = [
        {"word": n, "expected": f"{e:016x}", "got": f"{g:016x}", "again": f"{a:016x}", "stuck": f"{s:016x}"}
        for n, (e, g, a, s) in enumerate(samples)
    ]
    return {"chunk": chunk, "pattern": "solid", "words": len(samples), "samples": texts, "flips": flips}


@pytest.mark.parametrize(
    ("report", "kind"),
    [
        (bad([(0, 1, 1, 0)], {1: 1}), "cell"),
        (bad([(0, 1, 0, 0)], {1: 1}), "read"),
        (bad([], {}), "read"),
        (bad([(0, 1, 1, 1)], {1: 1}), "stuck"),
        (bad([(0, 0xFF, 0xFF, 0)] * 2, {8: 2}), "inversion"),
        (bad([(n, ~0 & (2**64 - 1), ~0 & (2**64 - 1), 0) for n in range(5)], {60: 5}), "constant"),
        (bad([(n * 7, n * 13 ^ 0xF0F0F0F0F0, n, 0) for n in range(9)], {30: 9}), "address"),
        (bad([(0, 1, 1, 0)], {1: 1}, chunk=9), "address"),
        (bad([(n, 3, 3, 0) for n in range(4)], {60: 4}), "constant"),
        (bad([(n, 3, 3, 0) for n in range(3)], {60: 3}), "cell"),
        (bad([(0, 1, 1, 0)], {19: 4}), "cell"),
        (bad([(0, 1, 1, 0)], {20: 4}), "address"),
        (bad([(0, 1, 1, 0)], {44: 4}), "address"),
        (bad([(0, 1, 1, 0)], {44: 3}), "cell"),
        (bad([(0, 1, 1, 0)], {45: 4}), "cell"),
        (bad([(0, 1, 1, 0)], {6: 4}), "cell"),
        (bad([(0, 1, 1, 0)], {7: 1}), "inversion"),
        (bad([(0, 1, 1, 0)], {9: 4}), "cell"),
    ],
)
def test_each_kind_of_fault_has_its_signs(report, kind):
    assert classify_error(report, located={9}) == kind


def full(**end):
    rows = [row(CARD, i) for i in range(40)]
    return [
        {"event": "begin", "free": 14000 << 20, "total": 15900 << 20, "torch": "2.13.0", "cuda": "13.0", "pid": 1},
        {"event": "filled", "bytes": 40 * CHUNK, "chunks": 40},
        *({"event": "speed", **r} for r in rows),
        {"event": "pattern", "name": "address", "verified": 40 * CHUNK, "bad_words": 0, "checks": 1, "seconds": 0.1},
        {"event": "released", "still_taken": 0, "free_less": 0, "seconds": 0.0},
        {"event": "end", "outcome": "done", "why": "", **end},
    ]


def test_the_layers_of_the_memory_are_told_one_from_another():
    values = digest(WorkerOutput(full()), Frame(1.0, gpu(), {}, gpu())).values

    layers = ("total", "reserved", "foreign", "visible", "context", "free")

    assert {name: values[f"{name}_bytes"] >> 20 for name in layers} == {
        "total": 16303,
        "reserved": 303,
        "foreign": 1000,
        "visible": 15900,
        "context": 1000,
        "free": 14000,
    }
    assert values["usable_bytes"] == values["verified_bytes"] == values["allocated_bytes"] == 40 * CHUNK


def test_each_figure_of_a_run_follows_from_the_workers_lines():
    seconds = [{"write": s, "change": 2 * s, "read": s / 2} for s in (0.25, 0.25, 0.25, 0.5)]
    lines = [
        {"event": "begin", "free": 14000 << 20, "total": 15900 << 20, "cuda": "13.0"},
        {"event": "filled", "bytes": 4 * CHUNK},
        *({"event": "rung", "outcome": outcome} for outcome in ("ok", "ok", "refused")),
        *({"event": "beyond", "outcome": outcome} for outcome in ("ok", "refused", "refused")),
        *({"event": "speed", "sweep": 2, "index": n, "bytes": CHUNK, **took} for n, took in enumerate(seconds)),
        {"event": "pattern", "name": "solid", "verified": 6 * CHUNK, "checks": 2},
        {"event": "pattern", "name": "move", "verified": 0, "checks": 0},
        {"event": "released", "still_taken": -1},
        {"event": "end", "outcome": "done"},
    ]
    before, after = gpu(free_bytes=14500 << 20), gpu(used_bytes=900 << 20)
    result = digest(WorkerOutput(lines, seconds=9.0), Frame(1.0, before, {}, after))

    assert (result.verdict, result.findings) == ("passed", ())
    assert result.values == {
        "spec_bytes": 16 << 30,
        "total_bytes": 16303 << 20,
        "reserved_bytes": 303 << 20,
        "foreign_bytes": 1000 << 20,
        "visible_bytes": 15900 << 20,
        "context_bytes": 500 << 20,
        "free_bytes": 14000 << 20,
        "allocated_bytes": 1 << 30,
        "verified_bytes": 3 * CHUNK,
        "checked_bytes": 6 * CHUNK,
        "rungs": 2,
        "beyond_chunks": 1,
        "spilled_bytes": 0,
        "usable_bytes": 1 << 30,
        "degraded_chunks": 1,
        "contended": 0,
        "write_min": 1 << 29,
        "write_median": 1 << 30,
        "change_min": 1 << 29,
        "change_median": 1 << 30,
        "read_min": 1 << 30,
        "read_median": 1 << 31,
        "leak_bytes": 0,
        "left_behind_bytes": 0,
        "errors": 0,
        "moved_chunks": 0,
        "duration_seconds": 9.0,
    }


def swept(*rates):
    """Lines of a run whose chunks had these speeds in the first and in the second sweep."""
    rows = [
        {"event": "speed", **row(rate, index), "sweep": sweep}
        for index, both in enumerate(rates)
        for sweep, rate in enumerate(both, start=1)
    ]
    chunks = [{"event": "chunk", "index": n, "bytes": CHUNK, "free_less": CHUNK} for n in range(len(rates))]
    return [*full()[:2], *chunks, *rows, *full()[-3:]]


def test_where_memory_begins_to_spill_is_told():
    values = digest(WorkerOutput(swept(*[(CARD, CARD)] * 36, *[(BUS, BUS)] * 4)), Frame(1.0, gpu(), {})).values

    assert (values["spill_start_bytes"], values["spilled_bytes"]) == (36 * CHUNK, 4 * CHUNK)
    assert values["usable_bytes"] == 36 * CHUNK
    assert values["moved_chunks"] == 0


def test_memory_moved_out_later_counts_by_where_it_ends_up():
    result = digest(WorkerOutput(swept(*[(CARD, CARD)] * 39, (CARD, BUS))), Frame(1.0, gpu(), {}))

    assert result.values["moved_chunks"] == 1
    assert [chunk["index"] for chunk in result.detail["chunks"] if chunk["class"] == "spilled"] == [39]
    assert {chunk["free_less"] for chunk in result.detail["chunks"]} == {CHUNK}
    assert [finding.kind for finding in result.findings] == ["spill"]


def test_a_run_that_gave_way_has_not_passed():
    result = digest(WorkerOutput(full(outcome="left", why="python wants the GPU")), Frame(1.0, gpu(), {}))

    assert (result.verdict, result.reason, result.complete) == ("left", "python wants the GPU", False)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"why": "taken", "facts": {"taken_bytes": 500 << 20}}, "another program took 500 MiB of VRAM"),
        ({"why": "told"}, "asked to stop"),
        ({"why": "{taken_bytes}\x1b[2J", "facts": {"taken_bytes": 1}}, "{taken_bytes} [2J"),
        ({"why": "x" * 3000}, "x" * 199 + "…"),
    ],
)
def test_why_a_worker_left_is_our_sentence_or_its_own_line(said, reason):
    result = digest(WorkerOutput(full(outcome="left", **said)), Frame(1.0, gpu(), {}))

    assert (result.verdict, str(result.reason)) == ("left", reason)


def test_the_reason_to_leave_outranks_the_order_to_leave():
    left = say("{program} wants the GPU", program="python3 (pid 42)")
    result = digest(WorkerOutput(full(outcome="left", why="told"), left=left), Frame(1.0, gpu(), {}))

    assert str(result.reason) == "python3 (pid 42) wants the GPU"


def test_wrong_data_counts_even_when_the_run_gave_way():
    lines = full(outcome="left", why="python wants the GPU")
    lines.insert(2, {"event": "bad", **bad([(0, 1, 1, 0)], {1: 1})})

    assert digest(WorkerOutput(lines), Frame(1.0, gpu(), {})).verdict == "findings"


def test_an_unexamined_error_counts_as_its_chunks_earlier_fault():
    cell, unexamined = bad([(0, 1, 1, 0)], {1: 1}), bad([], {}) | {"words": 0, "examined": False}
    result = digest(
        WorkerOutput(
            [
                {"event": "bad", **cell},
                {"event": "bad", **unexamined},
                {"event": "bad", **unexamined, "chunk": 4},
                {"event": "bad", **cell, "chunk": 6, "words": 3},
                {"event": "located", "chunk": 5, "belongs": [[6, 2]]},
            ]
        ),
        Frame(1.0, gpu(), {}),
    )

    assert [row["class"] for row in result.detail["errors"][:4]] == ["cell", "cell", "unexamined", "address"]
    assert result.values["errors"] == 6


def test_a_worker_that_ends_without_saying_how_has_failed():
    result = digest(WorkerOutput(full()[:-1]), Frame(1.0, gpu(), {}))

    assert (result.verdict, str(result.reason)) == ("failed", "the worker ended without a result")


def test_unfreed_memory_is_a_finding_but_not_what_a_driver_keeps():
    kept, leaked = (
        digest(WorkerOutput(full()), Frame(1.0, gpu(), {}, gpu(used_bytes=used << 20))) for used in (1256, 1257)
    )

    assert kept.findings == ()
    assert [(f.kind, str(f.text)) for f in leaked.findings] == [("leak", "257 MiB were not freed after the run")]


def test_a_worker_that_cannot_be_ended_is_the_worst_of_failures():
    result = digest(WorkerOutput(full(), "silent for 15 s", hung_pid=7), Frame(1.0, gpu(), {}))

    assert result.verdict == "failed"
    assert [f.kind for f in result.findings] == ["hung"]


def test_the_peak_follows_from_clock_and_width_of_the_memory():
    lines = full()
    lines[0] |= {"bus_bits": 256, "memory_kilohertz": 14_001_000}  # an RTX 5070 Ti

    assert digest(WorkerOutput(lines), Frame(1.0, gpu(), {})).values["peak_bandwidth"] == 896_064_000_000
    assert "peak_bandwidth" not in digest(WorkerOutput(full()), Frame(1.0, gpu(), {})).values


def test_chunks_of_no_bytes_tell_nothing_and_end_no_run():
    """Our worker never says so, but a line is checked by its shape alone."""
    empty = {"bytes": 0, "write": 1.0, "change": 1.0, "read": 1.0}
    assert classify_chunks([empty, empty]) == ["contended", "contended"]


@pytest.mark.parametrize(("kilohertz", "peak"), [(4_503_599_627_370, (1 << 50) - 124), (4_503_599_627_371, None)])
def test_a_peak_that_no_card_has_is_left_out(kilohertz, peak):
    begin = {"event": "begin", "bus_bits": 1, "memory_kilohertz": kilohertz}
    assert digest(WorkerOutput([begin]), Frame(1.8e9, gpu(), {})).values.get("peak_bandwidth") == peak
