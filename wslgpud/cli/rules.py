"""``wslgpud rules export``: Prometheus' rules and examples, without a clone of the repository."""

from __future__ import annotations

from typing import Annotated

from wslgpud import shipped_files
from wslgpud.cli import common, shipped
from wslgpud.cli.commands import CommandGroup
from wslgpud.cli.common import option
from wslgpud.cli.dashboards import FolderArgument
from wslgpud.words import t

app = CommandGroup()

_FOLDER = "deploy/prometheus"
_RULES = f"{_FOLDER}/wslgpud.rules.yml"
#: base URL of the links in the committed rules, see deploy/prometheus/generate.py
GRAFANA, DAEMON = "http://localhost:3000", "http://{{ $labels.instance }}"


@app.command()
def export(
    folder: FolderArgument,
    grafana: Annotated[str, option("--grafana", "URL", "address of Grafana, for links in alerts")] = GRAFANA,
    daemon: Annotated[str, option("--daemon", "URL", "address of the daemon's page, for links in alerts")] = DAEMON,
    force: common.Force = False,
) -> None:
    """Write rules, a scrape configuration and an example for Alertmanager.

    Examples:
        wslgpud rules export monitoring
        wslgpud rules export /etc/prometheus --grafana https://grafana.example
    """
    files = shipped_files.texts(f"{_FOLDER}/{name}.yml" for name in ("wslgpud.rules", "scrape", "alertmanager"))
    for before, after in ((GRAFANA, grafana), (DAEMON, daemon)):
        files[_RULES] = files[_RULES].replace(before, after.rstrip("/"))
    shipped.put(files, folder, force=force)
    message = t(
        "{count} files in {folder}: name the rules under rule_files in prometheus.yml, then:",
        count=len(files),
        folder=str(folder / _FOLDER),
    )
    print(f"{message}\n  promtool check rules {folder / _RULES}")
