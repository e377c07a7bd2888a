"""All sources, in the order in which a tick reads them, and the metrics they declare."""

from __future__ import annotations

from wslgpud.metrics import Catalogue
from wslgpud.sources import Source
from wslgpud.sources.cgroups import CgroupSource
from wslgpud.sources.clock import ClockSource
from wslgpud.sources.cpu import CpuSource
from wslgpud.sources.disk import DiskSource, FilesystemSource, WindowsDriveSource
from wslgpud.sources.kernel_log import KernelLogSource
from wslgpud.sources.memory import MemorySource
from wslgpud.sources.network import NetworkSource
from wslgpud.sources.pressure import PressureSource
from wslgpud.sources.processes import ProcessSource
from wslgpud.sources.wsl import WslSource

SOURCES: tuple[type[Source], ...] = (
    MemorySource,
    PressureSource,
    CpuSource,
    ClockSource,
    DiskSource,
    NetworkSource,
    KernelLogSource,
    CgroupSource,
    ProcessSource,
    WslSource,
    FilesystemSource,
    WindowsDriveSource,
)


def catalogue() -> Catalogue:
    """Return every metric that some source declares.

    Raises:
        ValueError: two sources declare the same name.
    """
    return Catalogue(spec for source in SOURCES for spec in source.metrics)
