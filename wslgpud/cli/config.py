"""``wslgpud config``: show, check, init."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from wslgpud import config as configuration
from wslgpud.cli.common import Commands, ConfigOption, Fault, JsonOption, loaded
from wslgpud.masking import visible

app = typer.Typer(cls=Commands, help="Show, check or write the configuration.", no_args_is_help=True)


@app.command()
def show(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show every key with its value and where that comes from."""
    found = loaded(config)
    rows = []
    for key in configuration.declared_keys():
        value = getattr(getattr(found.config, key.section), key.name)
        origin = found.origins.get(key.path, "default")
        rows.append((key, visible(value, key.shows), origin))
    if as_json:
        print(json.dumps({k.path: {"value": v, "origin": o, "help": k.help} for k, v, o in rows}, indent=2))
        return
    from rich.table import Table  # noqa: PLC0415

    from wslgpud.cli.console import Console  # noqa: PLC0415 - rich only when somebody looks

    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("key", "value", "from", "meaning"):
        # Keys are there to be copied: the meaning folds, they do not.
        table.add_column(heading, overflow="fold", no_wrap=heading == "key")
    for key, value, origin in rows:
        table.add_row(key.path, to_toml(value), "" if origin == "default" else origin, key.help)
    Console().print(table)


@app.command()
def check(config: ConfigOption = None) -> None:
    """Check the configuration; exit status 2 and one line if it cannot be used."""
    from wslgpud import app as daemon  # noqa: PLC0415 - all that it is made of: only here

    found = loaded(config)
    try:
        daemon.check(found.config)
    except configuration.ConfigError as error:
        raise Fault(str(error)) from error
    print(f"{found.file or 'no file, only defaults'}: good")


@app.command()
def init(
    file: Annotated[Path | None, typer.Argument(help="where to write; the usual place by default")] = None,
) -> None:
    """Write a configuration file in which every key stands with its help, commented out."""
    target = file or (configuration.SYSTEM_FILE if os.geteuid() == 0 else configuration.user_file(os.environ))
    if target.exists():
        raise Fault(f"{target} exists already; it is left as it is")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(sample_file())
    except OSError as error:
        raise Fault(f"cannot write {target}: {error.strerror}") from error
    print(f"wrote {target}")


def sample_file() -> str:
    """Return a configuration file in which every key stands with its help and default, commented out."""
    lines = ["# wslgpud configuration. Every line shows a default; remove the # to change it."]
    section = ""
    for k in configuration.declared_keys():
        if k.section != section:
            section = k.section
            lines += ["", f"[{section}]"]
        lines += [f"# {k.help}", f"# {k.name} = {to_toml(k.default)}"]
    return "\n".join(lines) + "\n"


def to_toml(value: Any) -> str:
    """Write a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(to_toml(v) for v in value) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return repr(value)
