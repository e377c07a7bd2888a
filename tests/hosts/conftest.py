"""Ticks of whole machines, for all tests here."""

from __future__ import annotations

import pytest

from tests.hosts.machines import HERE, facts
from wslgpud.config import Config, Sampling
from wslgpud.host import NoData, RecordedHost, SourceError
from wslgpud.model import EMPTY, Snapshot, SourceReport
from wslgpud.sampling.sampler import SOURCES
from wslgpud.sources import Source


def report(source: Source) -> SourceReport:
    """Read a source and wait for it, however busy the machine is that runs the tests."""
    try:
        return SourceReport(source.name, "ok", source.read(), 0.0, 0.0)
    except NoData as absence:
        return SourceReport(source.name, "absent", EMPTY, 0.0, 0.0, str(absence))
    except SourceError as failure:
        return SourceReport(source.name, "failed", EMPTY, 0.0, 0.0, str(failure))


@pytest.fixture(scope="session")
def ticked():
    """Read a machine as often as it needs; return the snapshots."""
    known = {}

    def tick(name: str) -> list[Snapshot]:
        if name not in known:
            # One of them never answers; for the others a busy machine may take its time.
            seconds = 3.0 if name == "nvml-hang" else 60.0
            config = Config(sampling=Sampling(gpu_timeout_seconds=seconds))
            sources = [source(RecordedHost(HERE / name), config) for source in SOURCES]
            try:
                known[name] = [
                    Snapshot(0.0, 0.0, i, tuple(report(source) for source in sources))
                    for i in range(facts(name).get("ticks", 1))
                ]
            finally:
                for source in sources:
                    source.close()
        return known[name]

    return tick
