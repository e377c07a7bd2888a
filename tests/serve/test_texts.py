"""The text of the metrics: how long it is kept, and how it is zipped."""

from __future__ import annotations

import gzip

from tests.serve.support import CATALOGUE, FAULTS, HandClock, snapshot
from wslgpud.model import Reading
from wslgpud.serve import Publisher
from wslgpud.serve.publisher import CLASSIC


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
