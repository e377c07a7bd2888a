"""The extras of ``pyproject.toml``, which are installed only when asked for, and how each is had."""

from __future__ import annotations

import sys
from pathlib import Path

#: extra -> what pip calls it
PACKAGES = {
    "apprise": "apprise",
    "otlp": "opentelemetry-exporter-otlp-proto-http",
    "parquet": "pyarrow",
    "plots": "matplotlib",
    "postgresql": "'psycopg[binary]'",
}


def remedy(extra: str) -> str:
    """Return the command that brings an extra to where this program runs."""
    # deploy/service.sh keeps what it installs there; what pip adds would be gone at the next upgrade.
    if ".releases" in str(Path(sys.prefix).resolve()):
        return f"./deploy/install --extra {extra}, with sudo or --user as it was installed"
    return f"{sys.executable} -m pip install {PACKAGES[extra]}"
