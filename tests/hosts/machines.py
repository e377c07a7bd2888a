"""The machines in this folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MACHINES = sorted(folder.parent.name for folder in HERE.glob("*/host.json"))


def facts(name: str) -> Any:
    return json.loads((HERE / name / "host.json").read_text())
