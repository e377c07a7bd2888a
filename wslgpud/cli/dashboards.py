"""``wslgpud dashboards export``: Grafana's dashboards, without a clone of the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from wslgpud import shipped_files
from wslgpud.cli import common, shipped
from wslgpud.cli.commands import CommandGroup
from wslgpud.cli.common import argument
from wslgpud.words import t

app = CommandGroup()

FolderArgument = Annotated[Path, argument("DIR", "folder to write to; created if missing")]


@app.command()
def export(folder: FolderArgument, force: common.Force = False) -> None:
    """Write dashboards, provisioning files and a compose file.

    Examples:
        wslgpud dashboards export monitoring
        wslgpud rules export monitoring && docker compose -f monitoring/grafana/compose.yml up -d
    """
    files = shipped_files.texts(("grafana/dashboards", "grafana/provisioning", "grafana/compose.yml"))
    shipped.put(files, folder, force=force)
    head = t("{count} files in {folder}: import those of grafana/dashboards, or:", count=len(files), folder=str(folder))
    print(f"{head}\n  wslgpud rules export {folder} && docker compose -f {folder}/grafana/compose.yml up -d")
