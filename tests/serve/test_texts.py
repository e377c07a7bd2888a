"""The text of the metrics: how long it is kept, how it is zipped, and in which order it lists series."""

from __future__ import annotations

import gzip

import pytest

from tests.serve.support import CATALOGUE, FAULTS, GPU_USED, HandClock, document_of, snapshot
from wslgpud.model import Reading
from wslgpud.serve import Publisher
from wslgpud.serve.metrics_text import MetricFamily, MetricsText, encode
from wslgpud.serve.negotiation import CLASSIC, OPENMETRICS
from wslgpud.serve.pages import plain_page
from wslgpud.words import ENGLISH


def test_a_text_is_kept_for_a_second_or_until_the_next_sample():
    clock, count = HandClock(), iter(range(100))
    publisher = Publisher(CATALOGUE, clock)
    publisher.add_collector(lambda: [Reading(FAULTS, next(count))])

    def faults():
        lines = publisher.text(CLASSIC).decode().splitlines()
        return next(line.rpartition(" ")[2] for line in lines if line.startswith("wslgpud_major_faults_total "))

    assert faults() == "0.0"
    clock.advance(1.0)
    assert faults() == "0.0"
    clock.advance(0.001)
    assert faults() == "1.0"
    publisher.publish(snapshot(mono=clock.mono()))
    assert faults() == "2.0"


def test_a_zipped_text_is_unchanged_and_compressed_fast():
    publisher = Publisher(CATALOGUE, HandClock())
    publisher.publish(snapshot())

    assert publisher.text(CLASSIC, zipped=True) == gzip.compress(publisher.text(CLASSIC), 1, mtime=0)


@pytest.mark.parametrize("form", [CLASSIC, OPENMETRICS])
def test_series_that_come_in_another_order_are_listed_in_it(form):
    one, other = ("0", "GPU-a"), ("1", "GPU-b")
    text = MetricsText(form)
    for series in ({one: 1, other: 2}, {other: 2, one: 1}, {other: 2, one: 3}, {one: 3}):
        family = MetricFamily(GPU_USED, series)
        assert text.of([family]) == encode([family.metric()], form)


def test_the_plain_page_shows_each_sources_duration_and_age():
    page = plain_page(document_of(snapshot()), "", ENGLISH).body.decode()

    assert '<th scope="row">memory</th><td class="ok">ok</td><td class="dim">0.2 ms, 1 s old</td>' in page
