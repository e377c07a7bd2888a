"""Whether this is WSL, which one, and how it is connected."""

from __future__ import annotations

import os
import re
from typing import Literal

from wslgpud.host import Host, NoData, SourceError
from wslgpud.metrics import gauge, info
from wslgpud.model import Reading, Sample
from wslgpud.probes import interop
from wslgpud.sources import Source
from wslgpud.words import say

_TIMEOUT_SECONDS = 2.0

_HELP = "The Windows Subsystem for Linux this runs under: 1 or 2, its version, networking mode and distro."
WSL = info("wsl", _HELP, "generation", "version", "networking", "distro", stored=True)
GPU_DEVICE = gauge(
    "wsl_gpu_device", "1 when WSL offers a GPU (/dev/dxg); 0: old Windows driver, or gpuSupport=false in .wslconfig."
)

Generation = Literal[0, 1, 2]


class WslSource(Source):
    """Facts about WSL that change only with an update; read rarely, and without a Windows process."""

    name = "wsl"
    lane = "wsl"  # wslinfo talks to WSL's init over a socket and may wait for it
    period_seconds = 300.0
    deadline_seconds = 5.0
    metrics = (WSL, GPU_DEVICE)

    def _prepare(self) -> None:
        self._answers: dict[tuple[str, ...], str] = {}

    def read(self) -> Sample:
        """Return WSL's version, networking mode and distro; NoData outside WSL."""
        kind = generation(self.host)
        if not kind:
            raise NoData(say("this is not WSL"))
        version, networking = (self._ask("wslinfo", option) for option in ("--version", "--networking-mode"))
        labels = (str(kind), version, networking, self._distro())
        return Sample((Reading(WSL, 1, labels), Reading(GPU_DEVICE, int(self.host.exists("/dev/dxg")))))

    def _ask(self, *command: str) -> str:
        """Return a command's output, or else its previous one: a busy init must not change the labels."""
        try:
            lines = self.host.run(command, _TIMEOUT_SECONDS).strip().splitlines()
            self._answers[command] = lines[0].strip()[:80] if lines else ""
        except (NoData, SourceError):
            self._answers.setdefault(command, "")
        return self._answers[command]

    def _distro(self) -> str:
        # Set in sessions, not in systemd units, where init knows it (\\wsl.localhost\Ubuntu\).
        if self.host.live and (name := os.environ.get("WSL_DISTRO_NAME")):
            return name
        return self._ask("wslpath", "-w", "/").strip("\\").rpartition("\\")[2]


def generation(host: Host) -> Generation:
    """Return the version of WSL, 1 or 2; 0 outside WSL.

    Custom kernels drop "microsoft" from their name (https://github.com/microsoft/WSL/issues/12756) and containers hide
    /run/WSL, so each sign serves where the others fail.
    """
    release = host.read_optional("/proc/sys/kernel/osrelease").strip()
    if release.endswith("-Microsoft"):  # WSL 1 alone writes it with a capital
        return 1
    if host.exists("/dev/dxg") or host.exists("/run/WSL") or interop.works(host):
        return 2
    if re.search("microsoft|wsl2", release, re.IGNORECASE) or host.exists("/usr/lib/wsl/lib"):
        return 2
    return 0
