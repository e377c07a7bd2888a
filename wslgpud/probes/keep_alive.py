"""Windows' scheduled task that keeps this distribution running: ``python -m wslgpud.probes.keep_alive create``.

Windows stops a WSL distribution 15 s after its last terminal closes, whatever services run in it. A hidden wsl.exe,
started at each log-on, keeps it running (https://github.com/microsoft/WSL/issues/10138).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from wslgpud.host import Host
from wslgpud.probes import interop
from wslgpud.words import MessageError, current

#: One line on standard input: create, remove, status or try, and the distribution.
SCRIPT = Path(__file__).with_name("keep_alive.ps1").read_text(encoding="utf-8")
_WSLPATH_SECONDS = 5.0


def does(host: Host, action: str) -> str:
    """Create, remove, query (``status``) or test the task, and return PowerShell's output.

    Raises:
        NoData: Windows cannot be queried, or the name of this distribution is unknown.
        SourceError: it failed.
    """
    return interop.run(host, SCRIPT, f"{action} {_distribution(host)}\n").strip()


def _distribution(host: Host) -> str:
    """Return the name by which Windows knows this distribution; sudo takes it from the environment."""
    if host.live and (name := os.environ.get("WSL_DISTRO_NAME")):
        return name
    return host.run(["wslpath", "-w", "/"], _WSLPATH_SECONDS).strip().strip("\\").rpartition("\\")[2]


if __name__ == "__main__":
    try:
        print(does(Host(), sys.argv[1]))
    except MessageError as error:
        sys.exit(current().text(error.message))
