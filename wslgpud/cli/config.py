"""``wslgpud config``: show, check, init."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from wslgpud import config as configuration
from wslgpud.cli.commands import App
from wslgpud.cli.common import ConfigOption, Fault, JsonOption, loaded, warn
from wslgpud.cli.help import wrapped
from wslgpud.config_key import ConfigError
from wslgpud.masking import visible
from wslgpud.words import cause, failure, t

#: of a line of text
_MOST_COLUMNS = 100

app = App(help="Show, check or write the configuration.")


@app.command()
def show(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show every key with its value and where that comes from.

    Examples:
        wslgpud config show
    """
    found = _loaded(config)
    rows = []
    for key in configuration.declared_keys():
        value = getattr(getattr(found.config, key.section), key.name)
        origin = found.origins.get(key.path, "default")
        rows.append((key, visible(value, key.shows), origin))
    if as_json:
        print(
            json.dumps({k.path: {"value": v, "origin": o, "help": t(k.help)} for k, v, o in rows}, indent=2)
        )
        return
    from rich.text import Text  # noqa: PLC0415

    from wslgpud.cli.console import Console  # noqa: PLC0415 - rich only when somebody looks

    console = Console(soft_wrap=True)
    columns = min(console.width, _MOST_COLUMNS) - 4
    for key, value, origin in rows:
        given = origin != "default"
        console.print(Text.assemble((key.path, "bold green" if given else "bold"), f" = {to_toml(value)}"))
        if given:
            console.print(Text(wrapped(t("from {place}", place=origin), columns, "    "), "green"))
        console.print(Text(wrapped(t(key.help), columns, "    "), "dim"))


@app.command()
def check(config: ConfigOption = None) -> None:
    """Check the configuration; exit status 2 and one line if it cannot be used.

    Examples:
        sudo wslgpud config check
    """
    from wslgpud import app as daemon  # noqa: PLC0415 - all that it is made of: only here

    found = _loaded(config)
    try:
        daemon.check(found.config)
    except ConfigError as error:
        raise Fault(cause(error)) from error
    print(t("{file}: good", file=str(found.file)) if found.file else t("no file, only defaults: good"))


@app.command()
def init(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="where to write; the usual place by default")
    ] = None,
) -> None:
    """Write a configuration file in which every key stands with its help, commented out.

    Examples:
        wslgpud config init  # then take the # off what you want to change
    """
    target = file or (configuration.SYSTEM_FILE if os.geteuid() == 0 else configuration.user_file(os.environ))
    try:
        target.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        _create(target, sample_file())
    except FileExistsError:
        raise Fault("{file} exists already; it is left as it is", file=str(target)) from None
    except OSError as error:
        raise Fault("cannot write {file}: {reason}", file=str(target), reason=failure(error)) from error
    print(t("wrote {file}", file=str(target)))


def _loaded(config: Path | None) -> configuration.Loaded:
    """Load the configuration, and say so where the service has another that this user may not read."""
    found = loaded(config)
    service = configuration.SYSTEM_FILE
    if config is None and service.parent.is_dir() and not os.access(service, os.R_OK):
        warn("the service has a configuration that you may not read: {file}", file=str(service))
    return found


def _create(file: Path, text: str) -> None:
    """Write a new file that is closed to others from the first byte on, since secrets will be put into it.

    Raises:
        FileExistsError: something has that name, be it a link that leads nowhere.
        OSError: it cannot be written; there is none then.
    """
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
    except BaseException:
        file.unlink()
        raise


def sample_file() -> str:
    """Return a configuration file in which every key stands with its help and default, commented out."""
    head = t("wslgpud configuration. Every line shows a default; remove the # to change it.")
    lines = [f"# {head}"]
    section = ""
    for k in configuration.declared_keys():
        if k.section != section:
            section = k.section
            lines += ["", f"[{section}]"]
        lines += [f"# {t(k.help)}", f"# {k.name} = {to_toml(k.default)}"]
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
