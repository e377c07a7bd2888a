"""All sources, in the order in which a tick reads them, and the metrics they declare."""

from __future__ import annotations

from wslgpud.metrics import Catalogue
from wslgpud.sources import Source
from wslgpud.sources.cpu import CpuSource
from wslgpud.sources.disk import DiskSource, FilesystemSource, WindowsDriveSource
from wslgpud.sources.memory import MemorySource
from wslgpud.sources.network import NetworkSource
from wslgpud.sources.pressure import PressureSource

SOURCES: tuple[type[Source], ...] = (
    MemorySource,
    PressureSource,
    CpuSource,
    DiskSource,
    NetworkSource,
    FilesystemSource,
    WindowsDriveSource,
)


def catalogue() -> Catalogue:
    """Return every metric that some source declares.

    Raises:
        ValueError: two sources declare the same name.
    """
    return Catalogue(spec for source in SOURCES for spec in source.metrics)
