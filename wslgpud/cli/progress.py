"""A bar on standard error for what takes a while; nothing without a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress

from wslgpud.cli.console import Console


@contextmanager
def bar(what: str, *, silent: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show a bar while the block runs; what it lends takes (done, total)."""
    columns = (
        progress.TextColumn("{task.description}", markup=False), progress.BarColumn(),
        progress.TaskProgressColumn(), progress.TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    shown = progress.Progress(
        *columns, console=console, transient=True, disable=silent or not console.is_terminal
    )
    with shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
