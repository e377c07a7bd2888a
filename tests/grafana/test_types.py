"""The dashboards against Grafana's own types: Grafana ignores a misspelt option, a compiler does not.

Runs where ``python -m tests.grafana.pictures`` has fetched Grafana's packages; it needs node.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.grafana.panels import DASHBOARDS, panels

MODULES = Path(__file__).parent.parent.parent / ".cache" / "grafana"
#: plugin -> name of its types, and whether it has options for fields
PLUGINS = {
    "stat": ("Stat", False),
    "bargauge": ("BarGauge", False),
    "timeseries": ("TimeSeries", True),
    "table": ("Table", True),
    "state-timeline": ("StateTimeline", True),
    "heatmap": ("Heatmap", True),
    "text": ("Text", False),
}
STRICT = ["--noEmit", "--strict", "--skipLibCheck", "--target", "es2022", "--module", "esnext"]


@pytest.fixture
def compile_text(tmp_path):
    """Compile TypeScript; return the compiler's output."""
    if not shutil.which("node") or not (MODULES / "node_modules" / "typescript").is_dir():
        pytest.skip("needs node, and Grafana's packages: python -m tests.grafana.pictures")
    (tmp_path / "node_modules").symlink_to(MODULES / "node_modules")

    def compile_(text: str) -> str:
        (tmp_path / "boards.ts").write_text(text)
        tsc = str(MODULES / "node_modules" / "typescript" / "bin" / "tsc")
        command = ["node", tsc, *STRICT, "--moduleResolution", "bundler", "boards.ts"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout

    return compile_


def typescript() -> str:
    """Return each panel's options and fields as a constant of the type that Grafana's plugin declares."""
    lines = ['import { Dashboard, FieldConfig } from "@grafana/schema";']
    types = "@grafana/schema/dist/esm/raw/composable"
    lines += [
        f'import * as {name} from "{types}/{name.lower()}/panelcfg/x/{name}PanelCfg_types.gen";'
        for name, _ in PLUGINS.values()
    ]
    lines.append("type Enums<T> = T extends string ? `${T}` : T extends object ? { [K in keyof T]: Enums<T[K]> } : T;")
    number = 0
    for board in DASHBOARDS.values():
        frame = {key: value for key, value in board.items() if key not in ("panels", "annotations", "templating")}
        number += 1
        lines.append(f"export const p{number}: Enums<Partial<Dashboard>> = {json.dumps(frame | {'id': None})};")
        for panel in panels(board):
            name, has_fields = PLUGINS[panel["type"]]
            fields = panel.get("fieldConfig", {}).get("defaults", {})
            number += 1
            custom = f"{name}.FieldConfig" if has_fields else "{}"
            where = f"{board['uid']} / {panel['title']}"
            lines += [
                f"// {where}",
                f"export const p{number}: Enums<Partial<{name}.Options>> = {json.dumps(panel['options'])};",
                f"export const f{number}: Enums<FieldConfig<Partial<{custom}>>> = {json.dumps(fields)};",
            ]
    return "\n".join(lines)


def test_every_option_is_one_that_grafana_knows(compile_text) -> None:
    assert compile_text(typescript()) == ""


def test_a_misspelt_option_is_found(compile_text) -> None:
    assert "colourMode" in compile_text(typescript().replace('"colorMode"', '"colourMode"'))
