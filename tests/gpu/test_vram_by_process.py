"""Which of Windows' figures are believed: none that could accuse the wrong program."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wslgpud.sources.gpu_programs import (
    TOLERANCE_RATIO,
    DriverNames,
    MeasuredVram,
    NvmlCard,
    believed,
    matched,
    measured,
)

GIB = 1 << 30
CARD = NvmlCard(16 * GIB, 12 * GIB, "00000000:01:00.0")
OWN = [15 * GIB, 0, 0, 0]


def adapter(*processes, own=OWN, vram=16 * GIB, pci=""):
    return {"luid": "0x0_0x1", "vram_bytes": vram, "pci": pci, "own": own, "processes": [list(p) for p in processes]}


def row(pid, usage, budget=15 * GIB, demoted=0):
    return [pid, budget, usage, usage, demoted]


def process_of(number):
    return number


def test_what_adds_up_is_believed():
    found = believed(adapter(row(812, 9 * GIB, demoted=GIB), row(900, GIB)), process_of, CARD)
    assert found == MeasuredVram({812: 9 * GIB, 900: GIB}, GIB, None)


def test_a_thread_stands_for_its_process():
    found = believed(adapter(row(815, 9 * GIB)), {815: 812}.get, CARD)
    assert found is not None
    assert found.used_bytes == {812: 9 * GIB}


def test_whoever_is_not_here_is_left_out():
    assert believed(adapter(row(7, 9 * GIB)), {}.get, CARD) is None


def test_more_than_is_used_is_believed_of_nobody():
    within = int(12 * GIB + TOLERANCE_RATIO * 16 * GIB)
    assert believed(adapter(row(1, within)), process_of, CARD) is not None
    assert believed(adapter(row(1, within - GIB), row(2, GIB + 1)), process_of, CARD) is None


def test_a_driver_that_answers_for_the_caller_is_not_believed():
    own = [15 * GIB, GIB, GIB, 0]
    assert believed(adapter([812, *own], [900, *own], own=own), process_of, CARD) is None


def test_zeros_are_no_answer_but_a_list_of_nobody_is():
    assert believed(adapter([812, 0, 0, 0, 0]), process_of, CARD) is None
    assert believed(adapter(), process_of, CARD) == MeasuredVram({}, 0, None)


def test_a_budget_below_the_card_is_its_ceiling():
    found = believed(adapter(row(812, 9 * GIB, budget=11 * GIB)), process_of, CARD)
    assert found is not None
    assert found.ceiling_bytes == 14 * GIB


def test_a_budget_that_others_share_is_no_ceiling():
    for budget in (2 * GIB, 8 * GIB, 13 * GIB, 15 * GIB):
        found = believed(adapter(row(812, 9 * GIB, budget=budget)), process_of, CARD)
        assert found is not None
        assert found.ceiling_bytes is None


def test_cards_are_told_apart_by_size():
    small = adapter(vram=GIB // 8)
    big = adapter(vram=int(0.985 * CARD.total_bytes))
    assert matched([small, big], {"GPU-1": CARD}) == {"GPU-1": big}


def test_twins_are_told_apart_by_address_only():
    cards = {"GPU-1": CARD, "GPU-2": CARD._replace(pci="00000000:41:00.0")}
    first, second = adapter(pci="00000000:01:00.0"), adapter(pci="00000000:41:00.0")
    assert matched([second, first], cards) == {"GPU-1": first, "GPU-2": second}
    assert matched([adapter(), adapter()], cards) == {}
    assert matched([adapter()], cards) == {}


_bytes = st.integers(0, 20 * GIB)
_rows = st.lists(st.tuples(st.integers(1, 8), _bytes, _bytes, _bytes, _bytes), max_size=8)


@given(_rows, st.integers(0, 16 * GIB), st.dictionaries(st.integers(1, 8), st.integers(1, 4)))
def test_no_more_is_believed_than_nvml_says(rows, used, processes):
    card = NvmlCard(16 * GIB, used, "")
    found = measured([adapter(*rows)], {"GPU-1": card}, processes.get).get("GPU-1")
    if found is None:
        return
    assert sum(found.used_bytes.values()) <= used + TOLERANCE_RATIO * card.total_bytes
    assert set(found.used_bytes) <= set(processes.values())
    assert found.ceiling_bytes is None or card.total_bytes / 2 <= found.ceiling_bytes < card.total_bytes


def test_names_may_arrive_while_others_are_forgotten():
    names = DriverNames(lambda: None, patient=False)
    names._names = {(pid, None): "old" for pid in range(5)}

    class Listed(set[int]):
        def __contains__(self, pid):
            names._names[pid + 100, None] = "new"  # as the thread does that asks for names
            return super().__contains__(pid)

    names.forget_others(Listed({1}))
    assert names._names == {(1, None): "old"}
