"""Completion of commands in bash, zsh and fish: Typer's, with values of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from wslgpud.cli import common
from wslgpud.cli.commands import COMPLETES
from wslgpud.words import t

#: completes one value: its prefix -> all matching values
Completer = Callable[[str], list[str]]


def script(shell: str) -> str:
    """Return the script for a shell to load."""
    from typer._completion_shared import get_completion_script

    text = get_completion_script(prog_name="wslgpud", complete_var=COMPLETES, shell=shell)
    if shell == "zsh":
        # zsh runs the file itself at the first Tab: if it only registered the completion, that Tab would do nothing.
        declares = "compdef _wslgpud_completion wslgpud"
        called = f"if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _wslgpud_completion; else {declares}; fi"
        text = text.replace(f"\n{declares}", f"\n{called}")
    return text


def show(shell: str) -> None:
    """Print the script for a shell to load, and exit."""
    typer.echo(script(shell))
    raise typer.Exit


def install(shell: str) -> None:
    """Make a shell load it from now on, and exit."""
    from typer._completion_shared import install as installed

    home = Path.home()
    with common.refused("cannot write {path}: {why}", path="~"):
        if os.geteuid() == 0 != home.stat().st_uid:  # sudo may have kept it; there links may lead anywhere
            raise common.Fault("{folder} is another user's: use sudo -H", folder=str(home))
    with common.refused("cannot write {path}: {why}", path="~"):
        _, path = installed(shell=shell, prog_name="wslgpud", complete_var=COMPLETES)
        path.write_text(f"{script(shell)}\n", encoding="utf-8")
    typer.echo(t("completion is in {path}; new terminals have it", path=str(path)))
    raise typer.Exit


def of(names: Callable[[], Any]) -> Completer:
    """Return a completer for names, which are determined on demand."""
    return lambda incomplete: [name for name in map(str, names()) if name.startswith(incomplete)]


def _rules() -> list[str]:
    from wslgpud.alerts.rules import OTHERS, RULES

    return sorted([*OTHERS, *(rule.name for rule in RULES)])


def _metrics() -> list[str]:
    from wslgpud.app.catalogue import catalogue

    return [spec.name for spec in catalogue() if spec.stored]


def _listed(path: str, rows: str) -> list[int]:
    """Return the numbers that a daemon lists, newest first; none where none answers."""
    from wslgpud import client

    for daemon in client.noted(common.daemon_folders(None)):
        with suppress(client.Unanswered, KeyError, TypeError):
            return [row["id"] for row in daemon.ask(path)[rows]]
    return []


rule = of(_rules)
metric = of(_metrics)
incident = of(lambda: _listed("/api/v1/incidents", "incidents"))
stress_run = of(lambda: _listed("/api/v1/stress", "runs"))
