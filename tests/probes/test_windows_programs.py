"""Windows' programs on a card: which are counted, by which name, and how many."""

from __future__ import annotations

from typing import Any

from tests.probes.windows_pc import ANSWER, HERE
from wslgpud.metrics import OTHER
from wslgpud.model import GpuSample, Sample, Snapshot, SourceReport
from wslgpud.sampling.cardinality import CardinalityLimiter
from wslgpud.sampling.observation import observation_of
from wslgpud.sources import windows
from wslgpud.sources.windows import Adapter, from_exporter, from_probe

CARD = "NVIDIA GeForce RTX 5070 Ti"
MIB, GIB = 1 << 20, 1 << 30


def held(card: Adapter) -> dict[str, int | None]:
    return {program.name: program.used_bytes for program in card.programs}


def on_the_card(*programs: tuple[str, int]) -> dict[str, int | None]:
    """Return what is known of a card from these processes and what each holds."""
    rows = [
        {"Name": f"pid_{pid}_luid_0x00000000_0x0000C8A5_phys_0", "LocalUsage": size, "Program": name}
        for pid, (name, size) in enumerate(programs, 1)
    ]
    (card, *_) = from_probe({**ANSWER, "programs": rows}).adapters
    return held(card)


def test_processes_of_a_program_are_one_and_the_largest_is_first() -> None:
    found = on_the_card(("dwm", 900 * MIB), ("chrome", 800 * MIB), ("chrome.exe", 300 * MIB), ("System", 70 * MIB))

    assert list(found.items()) == [("chrome.exe", 1100 * MIB), ("dwm.exe", 900 * MIB), ("System", 70 * MIB)]


def test_what_runs_in_wsl_is_no_program_of_windows() -> None:
    assert on_the_card(("vmmemWSL", GIB), ("vmmem", GIB), ("vmwp", GIB), ("game", GIB)) == {"game.exe": GIB}
    assert on_the_card(("vmmemwslc-cli-me", GIB)) == {"vmmemwslc-cli-me": GIB}


def test_a_process_without_a_name_has_just_ended() -> None:
    rows: list[dict[str, Any]] = [{"Name": "pid_7_luid_0x00000000_0x0000C8A5_phys_0", "LocalUsage": GIB}]
    assert from_probe({**ANSWER, "programs": rows}).adapters[0].programs == ()
    assert on_the_card(("", GIB), ("\x1b", GIB)) == {}


def test_names_from_windows_cannot_write_on_a_terminal() -> None:
    (name,) = on_the_card(("evil\x1b[31m\u202e\n" + "x" * 300, GIB))

    assert name.isprintable()
    assert len(name) <= 44


def test_at_most_eight_programs_of_a_card_count_and_no_small_one() -> None:
    eight = on_the_card(*((f"p{n}", (100 + n) * MIB) for n in range(30)), ("small", 63 * MIB))

    assert list(eight) == [f"p{n}.exe" for n in range(29, 21, -1)]
    assert on_the_card(("small", 63 * MIB)) == {}


def test_each_program_counts_on_the_card_by_its_number() -> None:
    rows = [
        {"Name": f"pid_1_luid_0x00000000_{luid}_phys_0", "LocalUsage": size, "Program": "game"}
        for luid, size in (("0x0000C8A5", GIB), ("0x0000D120", 2 * GIB), ("0x00000001", 3 * GIB))
    ]
    cards = from_probe({**ANSWER, "programs": rows}).adapters

    assert [held(card) for card in cards] == [{"game.exe": GIB}, {"game.exe": 2 * GIB}, {}]


def test_the_exporter_tells_the_same_programs_as_the_probe() -> None:
    probe, exporter = from_probe(ANSWER), from_exporter((HERE / "exporter.txt").read_text())

    assert held(probe.adapters[0]) == {"chrome.exe": 2254857830, "dwm.exe": 966367641}
    assert exporter.adapters[0].programs == probe.adapters[0].programs


def test_the_risk_engine_sees_the_programs_of_the_card_it_knows() -> None:
    sample = Sample(tuple(windows.readings(from_probe(ANSWER), None)), gpus=(GpuSample(0, "GPU-1", CARD),))
    seen = observation_of(Snapshot(0.0, 5.0, 1, (SourceReport("windows", "ok", sample, 5.0, 0.1),)))

    assert [(one.name, one.used_bytes) for one in seen.gpus[0].in_windows] == [
        ("chrome.exe", 2254857830),
        ("dwm.exe", 966367641),
    ]


def test_programs_that_change_their_names_make_few_series() -> None:
    limited, names = CardinalityLimiter(), set[str]()
    for second in range(60):
        rows = [
            {"Name": f"pid_{n}_luid_0x0_0xC8A5_phys_0", "LocalUsage": GIB, "Program": f"w{second}-{n}"}
            for n in range(8)
        ]
        sample = Sample(tuple(windows.readings(from_probe({**ANSWER, "programs": rows}), None)))
        report = SourceReport("windows", "ok", sample, float(second), 0.1)
        shown = limited.limited(Snapshot(0.0, float(second), second, (report,))).family(windows.GPU_PROGRAM)
        names |= {program for _, program in shown}

    assert OTHER in names
    assert len(names) <= 25
