"""The year that benchmarks are run on is one that a daemon could have left."""

from __future__ import annotations

import pytest

from tests.bench.year import DAY, make
from wslgpud.store import Reader, Store
from wslgpud.store.maintenance import audit, info

END = 1_750_032_000


@pytest.fixture(scope="module")
def year(tmp_path_factory):
    file = tmp_path_factory.mktemp("year") / "wslgpud.db"
    shares = list(make(file, end=END, days=3, raw_days=0.125, series=40))
    assert shares == sorted(shares)
    return file


def test_it_is_sound_and_holds_what_was_asked_for(year):
    with Reader(str(year)) as reader:
        assert audit(reader, lambda *_: None) == []
        found = info(reader)
    assert found.samples == 40 * 0.125 * DAY
    assert found.oldest.raw_wall == pytest.approx(END - 0.125 * DAY, abs=1)
    assert found.oldest.minute_wall == pytest.approx(END - 3 * DAY, abs=0.125 * DAY)


def test_counters_only_rise_over_the_whole_time(year):
    with Reader(str(year)) as reader:
        kinds = reader.kinds()
        counters = [ref for ref, kind in kinds.items() if kind == "counter"]
        assert counters
        for ref in counters:
            values = [p.value for p in reader.read(ref, END - 3 * DAY, END, 60)]
            assert values == sorted(values)
            assert values[-1] > values[0]


def test_a_daemon_goes_on_with_it(year):
    with Store(year, host_name="year") as store:
        assert store.stats().error == ""
        assert len(store.reader.series()) == 40
