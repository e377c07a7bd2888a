"""All sources, in the order in which a tick reads them."""

from __future__ import annotations

from wslgpud.sources import Source
from wslgpud.sources.cgroups import CgroupSource
from wslgpud.sources.cpu import ClockSource, CpuSource
from wslgpud.sources.disk import DiskSource, FilesystemSource, WindowsDriveSource
from wslgpud.sources.gpu import GpuSource
from wslgpud.sources.kernel_log import KernelLogSource
from wslgpud.sources.memory import MemorySource
from wslgpud.sources.model_servers import ModelServerSource
from wslgpud.sources.network import NetworkSource
from wslgpud.sources.oom_daemons import OomDaemonSource
from wslgpud.sources.pressure import PressureSource
from wslgpud.sources.processes import ProcessSource
from wslgpud.sources.windows import WindowsSource
from wslgpud.sources.wsl import WslSource

SOURCES: tuple[type[Source], ...] = (
    MemorySource,
    PressureSource,
    GpuSource,
    CpuSource,
    ClockSource,
    DiskSource,
    NetworkSource,
    KernelLogSource,
    OomDaemonSource,
    CgroupSource,
    ProcessSource,
    ModelServerSource,
    WslSource,
    WindowsSource,
    FilesystemSource,
    WindowsDriveSource,
)
