"""``wslgpud config``: show, check, init."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from rich.text import Text

from wslgpud import config as configuration
from wslgpud.cli import common
from wslgpud.cli.commands import CommandGroup
from wslgpud.cli.common import argument, loaded, own_config, warn, writing
from wslgpud.cli.console import Console
from wslgpud.cli.help import wrapped
from wslgpud.config.config_files import sample_file, to_toml
from wslgpud.security import safe_files
from wslgpud.security.redaction import visible
from wslgpud.words import t

#: characters per line of text
_MAX_COLUMNS = 100

app = CommandGroup()


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
    print(t("wrote {file}", file=str(target)))


def _loaded(config: Path | None) -> configuration.Loaded:
    """Load the configuration, with a notice if the service's own is not readable for this user."""
    configured = loaded(config)
    service = configuration.SYSTEM_FILE
    if config is None and service.parent.is_dir() and not os.access(service, os.R_OK):
        warn("the service has a configuration that you may not read: {file}", file=str(service))
    return configured
