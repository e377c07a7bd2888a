"""``wslgpud config``, ``dashboards`` and ``rules``: our settings, and files for Grafana and Prometheus."""

from __future__ import annotations

import grp
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from rich.text import Text

from wslgpud import config as configuration
from wslgpud import shipped_files
from wslgpud.cli import common
from wslgpud.cli.commands import CommandGroup
from wslgpud.cli.common import Fault, argument, loaded, option, own_config, warn, writing
from wslgpud.cli.console import Console
from wslgpud.cli.help import wrapped
from wslgpud.config.config_files import sample_file, to_toml
from wslgpud.security import safe_files
from wslgpud.security.redaction import visible
from wslgpud.sources.procfs import ACCOUNT
from wslgpud.words import t

#: characters per line of text
_MAX_COLUMNS = 100

app, dashboards, rules = CommandGroup(), CommandGroup(), CommandGroup()

FolderArgument = Annotated[Path, argument("DIR", "folder to write to; created if missing")]

_FOLDER = "deploy/prometheus"
_RULES = f"{_FOLDER}/wslgpud.rules.yml"
#: base URL of the links in the committed rules, see deploy/prometheus/generate.py
GRAFANA, DAEMON = "http://localhost:3000", "http://{{ $labels.instance }}"


@app.command()
def show(config: common.Config = None, as_json: common.Json = False) -> None:
    """Show every key with its value and its origin.

    Examples:
        wslgpud config show
    """
    configured = _loaded(config)
    rows = []
    for key in configuration.declared_keys():
        value = getattr(getattr(configured.config, key.section), key.name)
        rows.append((key, visible(value, key.shows), configured.origins.get(key.path)))
    if as_json:
        common.print_json({k.path: {"value": v, "origin": o or "default", "help": t(k.help)} for k, v, o in rows})
        return
    console = Console(soft_wrap=True)
    columns = min(console.width, _MAX_COLUMNS) - 4
    for key, value, origin in rows:
        console.print(Text.assemble((key.path, "bold green" if origin else "bold"), f" = {to_toml(value)}"))
        if origin:
            console.print(Text(wrapped(t("from {place}", place=origin), columns, "    "), "green"))
        console.print(Text(wrapped(t(key.help), columns, "    "), "dim"))


@app.command()
def check(config: common.Config = None) -> None:
    """Check the configuration; exit status 2 and one line if it is invalid.

    Examples:
        sudo wslgpud config check
    """
    from wslgpud.app import daemon  # imports everything: only here

    configured = _loaded(config)
    daemon.check(configured.config)
    print(t("{file}: good", file=str(configured.file)) if configured.file else t("no file, only defaults: good"))


@app.command()
def init(file: Annotated[Path | None, argument("FILE", "where to write; the usual place by default")] = None) -> None:
    """Write a configuration file with every key and its help, commented out.

    Examples:
        wslgpud config init  # then remove the # from the lines to change
    """
    target = file or own_config()
    with writing(target):
        target.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        if os.path.lexists(target):
            raise FileExistsError
        safe_files.put(target, sample_file())  # closed to others from the start: it will hold secrets
        if target == configuration.SYSTEM_FILE:
            _let_the_service_read(target)
    print(t("wrote {file}", file=str(target)))


def _let_the_service_read(file: Path) -> None:
    """Give a file and its folder to the group of the service, if one is installed: without it the daemon ends."""
    with suppress(KeyError):
        group = grp.getgrnam(ACCOUNT).gr_gid
        for path, mode in ((file.parent, 0o750), (file, 0o640)):
            os.chown(path, -1, group)
            path.chmod(mode)


def _loaded(config: Path | None) -> configuration.Loaded:
    """Load the configuration, with a notice if the service's own is not readable for this user."""
    configured = loaded(config)
    service = configuration.SYSTEM_FILE
    if config is None and service.parent.is_dir() and not os.access(service, os.R_OK):
        warn("the service has a configuration that you may not read: {file}", file=str(service))
    return configured


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
