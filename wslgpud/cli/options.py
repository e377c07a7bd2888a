"""Options that several commands have: each means the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from wslgpud.cli.commands import language
from wslgpud.words import use


def _heard(file: Path | None) -> Path | None:
    """Take the language from the configuration that ``--config`` names, for what is said from then on."""
    if file is not None:
        use(language(file))
    return file


def option(names: str, metavar: str, meaning: str, **more: Any) -> Any:
    """Declare an option that takes a value."""
    return typer.Option(*names.split(), metavar=metavar, help=meaning, **more)


def flag(names: str, meaning: str, **more: Any) -> Any:
    """Declare an option that takes none."""
    return typer.Option(*names.split(), help=meaning, **more)


def argument(metavar: str, meaning: str) -> Any:
    """Declare an argument."""
    return typer.Argument(metavar=metavar, help=meaning)


_CONFIG = option("--config -c", "FILE", "configuration instead of the usual one", is_eager=True, callback=_heard)
_HOST_ROOT = option("--host-root", "FOLDER", "a machine that 'wslgpud capture' recorded instead of this one")
_STATE = option("--state", "FOLDER", "folder of the daemon's data instead of the usual one")
_WHENS = "from then on: 90s, 2h or 7d ago, 14:00, yesterday, 2026-11-20, '2026-11-20 14:00'"
_EACH = "one value for each 10s, 5min, 1h, ... instead of every sample"
_PLOT = option("--plot", "[FILE]", "draw into FILE (.png, .svg); without a name on this terminal")

Config = Annotated[Path | None, _CONFIG]
Json = Annotated[bool, flag("--json", "print one JSON document")]
State = Annotated[Path | None, _STATE]
HostRoot = Annotated[Path | None, _HOST_ROOT]
HostName = Annotated[str, option("--host", "NAME", "only this machine, in a database of many")]
Since = Annotated[str, option("--since", "WHEN", _WHENS)]
Until = Annotated[str, option("--until", "WHEN", "up to then, written likewise")]
Step = Annotated[str, option("--step", "TIME", _EACH)]
Timeout = Annotated[str, option("--timeout", "TIME", "stop the command after this time: 90s, 30min, 1h30m")]
Interval = Annotated[str, option("--interval", "TIME", "time between two updates, at least 0.2s")]
Plot = Annotated[Path | None, _PLOT]
Gpu = Annotated[int, option("--gpu", "N", "number of the GPU", min=0)]
Force = Annotated[bool, flag("--force", "replace a file of that name")]
