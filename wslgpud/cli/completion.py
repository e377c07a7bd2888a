"""Completion of commands in bash, zsh and fish: Click's, with values of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import click

from wslgpud.cli import common
from wslgpud.words import t

Shell = Literal["bash", "zsh", "fish"]
#: completes one value: context, parameter and prefix -> all matching values
Completer = Callable[[click.Context, click.Parameter, str], list[str]]
#: below the home folder: a shell's script, and the file and line that load it where the shell does not by itself
_PLACES = {
    "bash": (".bash_completions/wslgpud.sh", ".bashrc", "source '{path}'"),
    "zsh": (".zfunc/_wslgpud", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    "fish": (".config/fish/completions/wslgpud.fish", "", ""),
}


def script(shell: Shell) -> str:
    """Return the script for a shell to load."""
    from click.shell_completion import get_completion_class

    asking = get_completion_class(shell)(click.Command("wslgpud"), {}, "wslgpud", "_WSLGPUD_COMPLETE")
    return (asking.source_template % asking.source_vars()).rstrip()


def show(shell: Shell) -> None:
    """Print the script for a shell to load."""
    click.echo(script(shell))


def install(shell: Shell) -> None:
    """Make a shell load it from now on."""
    home, (name, start, line) = Path.home(), _PLACES[shell]
    path, loads = home / name, line.format(path=home / name)
    with common.refused("cannot write {path}: {why}", path="~"):
        if os.geteuid() == 0 != home.stat().st_uid:  # sudo may have kept it; there links may lead anywhere
            raise common.Fault("{folder} is another user's: use sudo -H", folder=str(home))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{script(shell)}\n", encoding="utf-8")
        if start:
            with (home / start).open("a+", encoding="utf-8", errors="surrogateescape") as file:
                file.seek(0)
                if loads not in file.read():
                    file.write(f"\n{loads}\n")
    click.echo(t("completion is in {path}; new terminals have it", path=str(path)))


def of(names: Callable[[], Any]) -> Completer:
    """Return a completer for names, which are determined on demand."""
    return lambda _context, _param, incomplete: [name for name in map(str, names()) if name.startswith(incomplete)]


def _rules() -> list[str]:
    from wslgpud.alerts.rules import OTHERS, RULES

    return sorted([*OTHERS, *(rule.name for rule in RULES)])


def _metrics() -> list[str]:
    from wslgpud.app.catalogue import catalogue

    return [spec.name for spec in catalogue() if spec.stored]


def _listed(path: str, rows: str) -> list[int]:
    """Return the numbers that a daemon lists, newest first; none where none answers."""
    from wslgpud import client

    for daemon in filter(None, map(client.DaemonClient.of, common.daemon_folders(None))):
        with suppress(client.Unanswered, KeyError, TypeError):
            return [row["id"] for row in daemon.ask(path)[rows]]
    return []


rule = of(_rules)
metric = of(_metrics)
incident = of(lambda: _listed("/api/v1/incidents", "incidents"))
stress_run = of(lambda: _listed("/api/v1/stress", "runs"))
