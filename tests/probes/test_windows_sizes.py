"""Windows' sizes: which are known, whose they are, and how soon to ask for them again."""

from __future__ import annotations

import pytest

from wslgpud.sources import windows
from wslgpud.sources.windows import Adapter, Facts, from_exporter, from_probe, labelled


def test_cards_with_the_same_name_or_none_are_kept_apart() -> None:
    cards = [Adapter((0, n), name, {windows.GPU_SHARED: 1}) for n, name in ((9, "A"), (3, "A"), (5, ""), (7, "B"))]

    assert [(label, a.luid[1]) for label, a in labelled(cards)] == [
        ("A", 3),
        ("luid 0x0_0x5", 5),
        ("B", 7),
        ("A #2", 9),
    ]


def test_a_card_is_known_by_both_halves_of_its_number() -> None:
    luid = (0x1A, 0xC8A5)
    name = "luid_0x0000001A_0x0000C8A5_phys_0"
    probe = {"gpu": [{"Name": name, "SharedUsage": 7}], "adapters": [{"Luid": luid[0] << 32 | luid[1], "Name": "A"}]}
    page = 'windows_gpu_adapter_memory_shared_bytes{luid="0x0000001A_0x0000C8A5"} 7\n'

    assert from_probe(probe).adapters == (Adapter(luid, "A", {windows.GPU_SHARED: 7}),)
    assert from_exporter(page).adapters == (Adapter(luid, "", {windows.GPU_SHARED: 7}),)


def test_at_most_16_cards_become_series_and_long_names_are_cut() -> None:
    cards = [Adapter((0, n), f"{n:03}{'y' * 200}", {}) for n in range(30)]
    names = [name for name, _ in labelled(cards)]

    assert (len(names), {len(name) for name in names}) == (16, {80})


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ((1 << 62) - 1, (1 << 62) - 1),
        (1 << 62, None),
        (0, 0),
        (-1, None),
        ("9" * 18, 10**18 - 1),
        ("9" * 19, None),
        ("9.663", None),
        ("-1", None),
        ([1], None),
    ],
)
def test_a_size_that_no_machine_has_is_unknown(written: object, size: int | None) -> None:
    found = from_probe({"memory": [{"AvailableBytes": written}]}).sizes
    assert found.get(windows.AVAILABLE) == size


def test_a_virtual_machine_whose_memory_is_not_told_has_none() -> None:
    assert from_probe({"vm": [{"Name": "vmmemWSL"}]}) == Facts({}, (), {})


@pytest.mark.parametrize(
    ("sizes", "share"),
    [
        ({windows.TOTAL: 10, windows.AVAILABLE: 4}, 0.4),
        ({windows.COMMIT_LIMIT: 10, windows.COMMITTED: 7}, 0.3),
        ({windows.TOTAL: 10, windows.AVAILABLE: 2, windows.COMMIT_LIMIT: 10, windows.COMMITTED: 7}, 0.2),
        ({windows.COMMIT_LIMIT: 10, windows.COMMITTED: 12}, 0.0),
        ({windows.TOTAL: 10, windows.COMMIT_LIMIT: 10}, None),
    ],
)
def test_what_windows_has_left_is_the_scarcer_of_ram_and_commit(sizes: windows.Sizes, share: float | None) -> None:
    assert windows.left_share(sizes) == share


@pytest.mark.parametrize(
    ("every_seconds", "left", "period_seconds"),
    [
        (10, 0.30, 10),  # 30 % last 300 s at 0.1 % a second
        (10, 0.04, 5),
        (10, 0.016, 2),
        (10, 0.001, 2),
        (1, 0.001, 1),
    ],
)
def test_windows_is_asked_at_most_every_two_seconds_by_default(
    every_seconds: float, left: float, period_seconds: float
) -> None:
    period = windows.next_period(every_seconds, (0, left + 0.01), (10, left))
    assert period == pytest.approx(period_seconds)


@pytest.mark.parametrize(
    ("left", "period_seconds"), [(0.5, 10), (0.499, 10 * 0.499 / 0.2 / 8)], ids=["half is left", "less than half"]
)
def test_windows_is_asked_more_often_only_below_half(left: float, period_seconds: float) -> None:
    assert windows.next_period(10, (0, left + 0.2), (10, left)) == pytest.approx(period_seconds)


@pytest.mark.parametrize(("length", "read"), [(4000, True), (4001, False)])
def test_a_line_of_the_exporter_longer_than_any_name_is_left_out(length: int, read: bool) -> None:
    info = 'windows_gpu_info{{luid="0x0_0x5",name="{}"}} 1'
    line = info.format("A" * (length - len(info.format(""))))

    assert (len(line), bool(from_exporter(line).adapters)) == (length, read)
