"""The optional extras of ``pyproject.toml``, and how to install each."""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

#: beside the package in a clone
_PINNED = Path(__file__).parents[1] / "deploy/extras"
#: extra -> pip requirement
PACKAGES = {
    "apprise": "apprise",
    "otlp": "opentelemetry-exporter-otlp-proto-http",
    "parquet": "pyarrow",
    "plots": "matplotlib",
    "postgresql": "'psycopg[binary]'",
    "stress": "torch",
}


def remedy(extra: str) -> str:
    """Return the command that installs an extra into the environment of this program."""
    # Packages added by pip to the service's environment would be lost at the next upgrade.
    if ".releases" in str(Path(sys.prefix).resolve()):
        kind = "" if sys.prefix.startswith("/opt/") else " --user"
        return f"{'' if kind else 'sudo '}wslgpud service install{kind} --extra {extra}"
    if sys.prefix == "/usr/lib/wslgpud":  # the Debian package, whose files are dpkg's
        if extra == "stress":  # an environment of its own
            return f"sudo wslgpud service install --extra {extra}"
        service = f"~/.local/bin/wslgpud service install --extra {extra}"
        return f"sudo apt remove wslgpud && pipx install wslgpud && sudo {service}"
    pinned = _PINNED / f"{extra}.txt"
    what = f"--require-hashes -r {shlex.quote(str(pinned))}" if pinned.is_file() else PACKAGES[extra]
    if find_spec("pip") is None:  # an environment of uv's
        return f"uv pip install --python {shlex.quote(sys.executable)} {what}"
    return f"{sys.executable} -m pip install {what}"
