"""How fast a history grows is said once it is long enough to tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from wslgpud.store.maintenance import Info
from wslgpud.store.records import Oldest

NEWEST = 1_800_000_000.0


def grown(
    seconds: float | None, sealed: int = 6000, newest: int = 1200, samples: int = 6000, *, known: bool = True
) -> Info:
    """Return the reported size and growth of a history of that many seconds, its tables' sizes being ``known``."""
    oldest = Oldest(raw_wall=None if seconds is None else NEWEST - seconds)
    tiers = {"sealed": sealed, "newest": newest, "minutes": 5000} if known else {}
    return Info(1, ("here",), 3, 1 << 20, 0, 0, tiers, samples, oldest, NEWEST, tuple[Path, ...]())


def test_a_day_is_foretold_from_an_hour_on() -> None:
    assert grown(3599.0).bytes_a_day is None
    assert grown(3600.0).bytes_a_day == pytest.approx(7200 * 24)
    assert grown(7200.0).bytes_a_day == pytest.approx(7200 * 12)
    assert grown(None).bytes_a_day is None


def test_bytes_per_sample_leave_out_the_lasting_summaries() -> None:
    assert grown(3600.0).bytes_a_sample == 1.0
    assert grown(3600.0, samples=0).bytes_a_sample is None
    assert grown(3600.0, sealed=0, newest=0).bytes_a_sample is None


def test_without_table_sizes_no_growth_is_forecast() -> None:
    assert grown(3600.0, known=False).bytes_a_sample is None
    assert grown(3600.0, known=False).bytes_a_day is None
