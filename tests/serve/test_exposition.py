"""What Prometheus reads: every value once, in a stable order, in formats its own tools call clean."""

from __future__ import annotations

import gzip
import math
import subprocess
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest as classic_text
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from tests.serve.support import AVAILABLE, CATALOGUE, GPU, GPU_USED, HandClock, snapshot
from tests.support.servers import program
from wslgpud.metrics import MetricSpec
from wslgpud.model import Reading
from wslgpud.serve import Publisher
from wslgpud.serve.publisher import CLASSIC, OPENMETRICS, families, text_of

GOLDEN = Path(__file__).parent / "golden"


def written(readings, text_format, order=MappingProxyType({})):
    return text_of(families(readings, order), (), text_format)


def judged(readings, text_format):
    """The text as prometheus_client writes it, all of it anew."""
    metrics = []
    for spec, series in families(readings, {}):
        metrics.append(Metric(spec.family, spec.help, spec.kind, spec.unit))
        for labels, value in series.items():
            metrics[-1].add_sample(spec.exposed_name, dict(zip(spec.labels, labels, strict=True)), value)
    write = openmetrics_text if text_format == OPENMETRICS else classic_text
    return write(SimpleNamespace(collect=lambda: metrics))


def exposed(text_format, *snapshots):
    """The text without what belongs to this run: the process, the versions, the time rendering took."""
    publisher = Publisher(CATALOGUE, HandClock())
    for each in snapshots:
        publisher.publish(each)
    lines = publisher.text(text_format).decode().splitlines(keepends=True)
    return "".join(line for line in lines if "process_" not in line and "_build_info{" not in line)


@pytest.mark.parametrize(("text_format", "name"), [(CLASSIC, "classic.prom"), (OPENMETRICS, "openmetrics.prom")])
def test_a_known_snapshot_gives_a_known_text(text_format, name):
    assert exposed(text_format, snapshot()) == (GOLDEN / name).read_text()


def test_promtool_finds_nothing_to_complain_about():
    promtool = program("prometheus", "promtool")
    publisher = Publisher(CATALOGUE)
    publisher.publish(snapshot())
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=publisher.text(CLASSIC), capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_openmetrics_is_accepted_by_a_strict_parser():
    publisher = Publisher(CATALOGUE)
    publisher.publish(snapshot())
    text = publisher.text(OPENMETRICS).decode()
    found = {family.name: family for family in parse_openmetrics(text)}
    assert text.endswith("# EOF\n")
    assert found["wslgpud_major_faults"].type == "counter"
    assert found["wslgpud_memory_available_bytes"].unit == "bytes"
    assert found["wslgpud_gpu"].type == "info"


def test_metric_families_follow_the_order_of_the_catalogue():
    order = {AVAILABLE.name: 0, GPU_USED.name: 1}
    readings = [Reading(GPU_USED, 1, ("0", "a")), Reading(AVAILABLE, 2), Reading(GPU_USED, 3, ("1", "b"))]
    assert [f.spec for f in families(readings, order)] == [AVAILABLE, GPU_USED]
    assert written(readings, CLASSIC, order).count(b"# TYPE wslgpud_gpu_memory_used_bytes ") == 1


def test_a_metric_that_no_source_knows_is_absent_not_zero():
    publisher = Publisher(CATALOGUE)
    assert b"wslgpud_memory_available_bytes" not in publisher.text(CLASSIC)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_finite_number_is_absent(value):
    assert families([Reading(AVAILABLE, value)], {}) == []


def test_a_series_that_two_sources_read_is_exposed_once():
    (family,) = families([Reading(AVAILABLE, 1), Reading(AVAILABLE, 2)], {})
    assert list(family.series.values()) == [2]


def test_a_wrong_number_of_labels_is_an_error_naming_the_metric():
    with pytest.raises(ValueError, match="wslgpud_gpu_memory_used_bytes declares labels"):
        written([Reading(GPU_USED, 1, ("0",))], CLASSIC)


#: Text as processes and mounts may be called: quotes, line ends, NUL, halves of surrogate pairs.
HOSTILE = st.text(st.characters(), max_size=20)


@given(st.dictionaries(st.tuples(HOSTILE, HOSTILE), st.integers(0, 2**53), min_size=1, max_size=5))
def test_no_name_on_the_machine_can_break_the_text(series):
    readings = [Reading(GPU_USED, value, labels) for labels, value in series.items()]
    (openmetrics,) = parse_openmetrics(written(readings, OPENMETRICS).decode())
    assert {s.value for s in openmetrics.samples} <= set(series.values())
    assert len(openmetrics.samples) == len({tuple(s.labels.items()) for s in openmetrics.samples})
    assert all(line[:1] in (b"#", b"w") for line in written(readings, CLASSIC).split(b"\n") if line)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_value_keeps_every_bit(value):
    spec = MetricSpec("celsius", "gauge", "", "Any number.")
    for text_format, parse in ((CLASSIC, parse_classic), (OPENMETRICS, parse_openmetrics)):
        (family,) = parse(written([Reading(spec, value)], text_format).decode())
        assert family.samples[0].value == value


#: 0.0 and -0.0 are one value, whose text stays as it was written first
VALUES = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False).filter(bool)
ANY_READING = st.one_of(
    st.builds(Reading, st.just(AVAILABLE), VALUES, st.just(())),
    st.builds(Reading, st.just(GPU), st.just(1), st.tuples(*[st.sampled_from("ab")] * len(GPU.labels))),
    st.builds(Reading, st.just(GPU_USED), st.integers(0, 2) | VALUES, st.tuples(st.sampled_from("01"), HOSTILE)),
    st.builds(Reading, st.just(GPU_USED), st.integers(0, 2), st.tuples(st.sampled_from("012"), st.sampled_from("ab"))),
)


@pytest.mark.parametrize("text_format", [CLASSIC, OPENMETRICS])
@given(st.lists(st.lists(ANY_READING, max_size=8), max_size=6))
def test_cached_text_is_what_prometheus_client_would_write(text_format, scrapes):
    for readings in scrapes:
        assert written(readings, text_format) == judged(readings, text_format)


class CountingExtra:
    """Own health that knows how often it was asked."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return [Reading(AVAILABLE, self.calls)]


def test_any_number_of_scrapes_of_a_snapshot_renders_it_once():
    publisher, extra = Publisher(CATALOGUE, HandClock()), CountingExtra()
    publisher.add_collector(extra)
    publisher.publish(snapshot())
    texts = {publisher.text(CLASSIC) for _ in range(20)}
    zipped = {publisher.text(CLASSIC, zipped=True) for _ in range(20)}
    assert (len(texts), extra.calls) == (1, 1)
    assert {gzip.decompress(z) for z in zipped} == texts


def test_a_new_snapshot_shows_at_once():
    publisher = Publisher(CATALOGUE, HandClock())
    publisher.publish(snapshot(1, available=111))
    before = publisher.text(CLASSIC)
    publisher.publish(snapshot(2, available=222))
    assert b"wslgpud_memory_available_bytes 111.0" in before
    assert b"wslgpud_memory_available_bytes 222.0" in publisher.text(CLASSIC)


@pytest.mark.parametrize(("seconds", "calls"), [(1.0, 1), (1.125, 2), (5.0, 2)])
def test_own_health_goes_on_after_a_second_when_ticks_do_not(seconds, calls):
    clock, extra = HandClock(), CountingExtra()
    publisher = Publisher(CATALOGUE, clock)
    publisher.add_collector(extra)
    publisher.text(CLASSIC)
    clock.advance(seconds)
    publisher.text(CLASSIC)
    assert extra.calls == calls


def test_a_part_with_unknown_health_does_not_silence_the_others(caplog):
    def broken():
        raise RuntimeError("no queue")

    publisher = Publisher(CATALOGUE, HandClock())
    publisher.add_collector(broken)
    publisher.publish(snapshot())
    assert b"wslgpud_memory_available_bytes 4e+09" in publisher.text(CLASSIC)
    assert "no queue" in caplog.text


def test_a_late_source_shows_its_failure_and_no_values():
    text = exposed(CLASSIC, snapshot())
    assert 'wslgpud_source_success{source="disk"} 0.0' in text
    assert 'wslgpud_source_age_seconds{source="disk"}' not in text
    assert 'wslgpud_source_age_seconds{source="gpu"} 0.5' in text


def test_what_a_machine_lacks_is_no_failure():
    text = exposed(CLASSIC, snapshot())
    assert 'wslgpud_source_available{source="pressure"} 0.0' in text
    assert 'wslgpud_source_success{source="pressure"}' not in text


def test_a_failing_part_is_reported_once_until_it_recovers(caplog):
    clock = HandClock()
    publisher = Publisher(CATALOGUE, clock)
    fault = [True]

    def broken():
        if fault[0]:
            raise ValueError("out of order")
        return []

    publisher.add_collector(broken)

    def scrape():
        clock.advance(10)
        publisher.text(CLASSIC)

    for _ in range(3):
        scrape()
    assert len(caplog.records) == 1
    fault[0] = False
    scrape()
    fault[0] = True
    scrape()
    assert len(caplog.records) == 2
