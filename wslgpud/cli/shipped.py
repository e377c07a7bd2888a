"""``wslgpud dashboards export`` and ``wslgpud rules export``: what comes with the program, without a clone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from wslgpud import shipped_files
from wslgpud.cli import common
from wslgpud.cli.commands import CommandGroup
from wslgpud.cli.common import Fault, argument, option, writing
from wslgpud.security import safe_files
from wslgpud.words import t

dashboards, rules = CommandGroup(), CommandGroup()

FolderArgument = Annotated[Path, argument("DIR", "folder to write to; created if missing")]

_FOLDER = "deploy/prometheus"
_RULES = f"{_FOLDER}/wslgpud.rules.yml"
#: base URL of the links in the committed rules, see deploy/prometheus/generate.py
GRAFANA, DAEMON = "http://localhost:3000", "http://{{ $labels.instance }}"


@dashboards.command("export")
def export_dashboards(folder: FolderArgument, force: common.Force = False) -> None:
    """Write dashboards, provisioning files and a compose file.

    Examples:
        wslgpud dashboards export monitoring
        wslgpud rules export monitoring && docker compose -f monitoring/grafana/compose.yml up -d
    """
    files = shipped_files.texts(("grafana/dashboards", "grafana/provisioning", "grafana/compose.yml"))
    _put(files, folder, force=force)
    head = t("{count} files in {folder}: import those of grafana/dashboards, or:", count=len(files), folder=str(folder))
    print(f"{head}\n  wslgpud rules export {folder} && docker compose -f {folder}/grafana/compose.yml up -d")


@rules.command("export")
def export_rules(
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
    _put(files, folder, force=force)
    message = t(
        "{count} files in {folder}: name the rules under rule_files in prometheus.yml, then:",
        count=len(files),
        folder=str(folder / _FOLDER),
    )
    print(f"{message}\n  promtool check rules {folder / _RULES}")


def _put(files: Mapping[str, str], folder: Path, *, force: bool) -> None:
    """Write files below a folder; modified ones are replaced only with ``force``. Raises Fault."""
    for path, text in ((folder / name, text) for name, text in files.items()):
        if not force and _differs(path, text):
            raise Fault("{path} is there already and differs; --force replaces it", path=str(path))
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name
        # Whoever owns the folder may have put links where its subfolders come.
        with writing(path), safe_files.Folder(folder, str(Path(name).parent), make=True) as inner:
            inner.put(path.name, text, mode=0o644)


def _differs(path: Path, text: str) -> bool:
    try:
        return safe_files.contents(path) != text.encode()
    except FileNotFoundError:
        return False
    except OSError:  # something else than a file
        return True
