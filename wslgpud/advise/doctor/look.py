"""What several checks ask of the machine, each thing once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from wslgpud import secrecy
from wslgpud.advise.doctor.torches import TorchFacts
from wslgpud.advise.wslconfig import compare, files
from wslgpud.advise.wslconfig.parse import Parsed, parse
from wslgpud.config import Config, find_file
from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import GpuSample, ProcessSample, Reading
from wslgpud.sources import gpu as gpu_source
from wslgpud.sources.disk import Mount, mounts
from wslgpud.sources.processes import ProcessSource
from wslgpud.sources.text import table, whole
from wslgpud.sources.wsl import generation
from wslgpud.words import Said, failure, say


class Gpus(NamedTuple):
    """What NVML says: the cards, their identity by label name, the library; or why it says nothing."""

    samples: tuple[GpuSample, ...] = ()
    identities: tuple[dict[str, str], ...] = ()
    library: str = ""
    error: Said = ""


class WslConfig(NamedTuple):
    """The user's .wslconfig; ``parsed`` is None where the file is not there, ``error`` says why not found."""

    path: str = ""
    parsed: Parsed | None = None
    error: Said = ""


class Look:
    """One look at a machine. ``torch`` is None where nobody has asked for it."""

    def __init__(
        self, host: Host, config: Config, torch: Sequence[TorchFacts] | None, state_folder: str
    ) -> None:
        """Nothing is read yet."""
        self.host, self.config, self.torch, self.state_folder = host, config, torch, state_folder

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None where it is not there.

        Raises:
            SourceError: it is there and cannot be read.
        """
        try:
            return self.host.read(path)
        except NoData:
            return None

    def number(self, path: str) -> int:
        """Return the number in a file.

        Raises:
            NoData: the file is not there or holds none.
            SourceError: it cannot be read.
        """
        value = whole(self.host.read(path).strip())
        if value is None:
            raise NoData(say("{path} does not hold a number", path=path))
        return value

    @cached_property
    def wsl(self) -> int:
        """1 or 2, or 0 for plain Linux."""
        return generation(self.host)

    @cached_property
    def release(self) -> str:
        """The kernel's release, like 6.6.87.2-microsoft-standard-WSL2."""
        return (self.read("/proc/sys/kernel/osrelease") or "").strip()

    @cached_property
    def wsl_version(self) -> str:
        """Version of the WSL package; empty where it is too old to tell."""
        try:
            return self.host.run(["wslinfo", "--version"], 2.0).strip()
        except (NoData, SourceError):
            return ""

    @cached_property
    def memory(self) -> dict[str, int]:
        """/proc/meminfo in bytes."""
        levels = table(self.host.read("/proc/meminfo"))
        return {
            name: kilobytes << 10 for name, word in levels.items() if (kilobytes := whole(word)) is not None
        }

    @cached_property
    def mounts(self) -> list[Mount]:
        """All mounts."""
        return mounts(self.host.read("/proc/self/mounts"))

    @cached_property
    def gpus(self) -> Gpus:
        """What NVML says, in a child of its own."""
        source = gpu_source.GpuSource(self.host, self.config)
        try:
            sample = source.read()
            own = source.own()
        except (NoData, SourceError) as error:
            return Gpus(error=error.said)
        finally:
            source.close()
        return Gpus(
            sample.gpus or (),
            tuple(_labels(r) for r in sample.readings if r.spec is gpu_source.INFO),
            # Of a recording NVML's "library" is the file with its answers.
            next((_labels(r)["path"] for r in own if r.spec is gpu_source.LIBRARY and self.host.live), ""),
        )

    @cached_property
    def processes(self) -> tuple[ProcessSample, ...]:
        """The processes that matter, with their roles."""
        source = ProcessSource(self.host, self.config)
        try:
            return source.read().processes or ()
        except (NoData, SourceError):
            return ()

    @cached_property
    def names(self) -> dict[int, str]:
        """Every process that we may see, by its pid."""
        found = {}
        for name in self.host.names("/proc"):
            if name.isdecimal():
                try:
                    found[int(name)] = self.host.read(f"/proc/{name}/comm").strip()
                except (NoData, SourceError):
                    continue
        return found

    @cached_property
    def wslconfig(self) -> WslConfig:
        """The Windows user's .wslconfig."""
        try:
            path = files.find(self.host)
        except files.NotFound as error:
            return WslConfig(error=error.said)
        try:
            text = files.read(self.host.path(path)).text
        except FileNotFoundError:
            return WslConfig(path)
        except OSError as error:
            return WslConfig(path, error=say("cannot read {path}: {why}", path=path, why=failure(error)))
        return WslConfig(path, parse(text, path))

    @cached_property
    def settings_seen(self) -> list[compare.Row]:
        """The settings of .wslconfig beside what the machine has."""
        return compare.rows(self.wslconfig.parsed or Parsed(), self.host)

    @cached_property
    def exposed(self) -> list[Path]:
        """Our files with secrets that everybody can read."""
        return secrecy.exposed(self.config, find_file(os.environ))

    @property
    def is_root(self) -> bool:
        """Tell whether we are root; of a recording nobody knows, and it was most likely made as a user."""
        return self.host.live and os.geteuid() == 0


def _labels(reading: Reading) -> dict[str, str]:
    return dict(zip(reading.spec.labels, reading.labels, strict=True))
