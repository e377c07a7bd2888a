"""Completion of commands in bash, zsh and fish: Click's, with values of this machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import click

from wslgpud.cli import common

Shell = Literal["bash", "zsh", "fish"]
#: completes one value: context, parameter and prefix -> all matching values
Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def script(shell: Shell) -> str:
    """Return the script for a shell to load."""
    from click.shell_completion import get_completion_class

    asking = get_completion_class(shell)(click.Command("wslgpud"), {}, "wslgpud", "_WSLGPUD_COMPLETE")
    return (asking.source_template % asking.source_vars()).rstrip()


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
