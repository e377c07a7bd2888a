"""Commands: parse, call, print. A command's module is imported only when that command is used."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from typer.core import TyperGroup

from wslgpud import __version__
from wslgpud.cli.commands import CommandApp, CommandGroup

#: in the order of the help; each names its module, which has an ``app`` (a group) or a function of that name
NAMES = (
    *("run", "status", "monitor", "doctor", "record", "replay", "capture", "incidents"),
    *("guard", "inside", "fit", "sweep", "history", "export", "config", "alerts", "brake", "stress", "wslconfig"),
    *("db", "dashboards", "rules", "service"),
)
#: commands in the module of another
_BESIDE = {"monitor": "status", "capture": "record", "export": "history"}


def _module(name: str) -> str:
    return f"wslgpud.cli.{_BESIDE.get(name, name)}"


@cache
def _command(name: str) -> Any:
    module = importlib.import_module(_module(name))
    if (found := getattr(module, "app", None)) is None:
        found = CommandApp(no_args_is_help=False)
        # Arguments after another program's name belong to that program.
        settings = {"allow_interspersed_args": False} if name in ("guard", "inside") else {}
        function = getattr(module, f"{name}_command", None) or getattr(module, name)
        found.command(name, context_settings=settings)(function)
    command = typer.main.get_command(found)
    command.name = name
    return command


class Listed(NamedTuple):
    """A command in a list of commands."""

    name: str
    help: str


#: location of a command's help: the help of a group, or the docstring of its function
_GROUP = re.compile(r'CommandApp\(\s*help=(".+?")\s*[,)]', re.DOTALL)
_DOCSTRING = re.compile(r'^    (""".+?""")', re.DOTALL | re.MULTILINE)
_HEADS = ("\ndef {}(", "\ndef {}_command(", "\n@app.callback(")


def _listed(name: str) -> Listed:
    """Return a command's entry without importing it: importing all of them takes a second."""
    source = find_spec(_module(name))
    text = Path(source.origin).read_text(encoding="utf-8") if source and source.origin else ""
    found = _GROUP.search(text)
    if found is None:
        start = next(place for head in _HEADS if (place := text.find(head.format(name))) >= 0)
        found = _DOCSTRING.search(text, start)
    if found is None:
        raise LookupError(name)
    return Listed(name, inspect.cleandoc(ast.literal_eval(found[1])))


class _Late(Mapping[str, Any]):
    """The commands by name, each imported on access: 'wslgpud guard' needs no database."""

    def __getitem__(self, name: str) -> Any:
        if name not in NAMES:
            raise KeyError(name)
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


class _Root(CommandGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Late()  # type: ignore[assignment]  # nothing is added to it

    def listed(self) -> list[Any]:
        """Return the commands for their list."""
        return [_listed(name) for name in NAMES]

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the names of commands with this prefix, without importing them; else options."""
        from typer._click.shell_completion import CompletionItem

        names = [name for name in NAMES if name.startswith(incomplete)]
        return [CompletionItem(name) for name in names] or super(TyperGroup, self).shell_complete(ctx, incomplete)


app = CommandApp(
    cls=_Root,
    name="wslgpud",
    help="""Watches GPU, RAM and swap under WSL2 and warns before memory runs out.

    Examples:
    wslgpud status  # the state of this machine
    wslgpud monitor  # the machine, live
    wslgpud incidents  # incidents of the last 30 days
    wslgpud doctor  # mistakes in the setup of this machine, with their fixes
    """,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"wslgpud {__version__}")
        raise typer.Exit


Shell = Literal["bash", "zsh", "fish"]


def _complete(context: typer.Context, parameter: typer.CallbackParam, shell: Shell | None) -> None:
    if shell is not None and not context.resilient_parsing:
        from wslgpud.cli import completion

        (completion.install if parameter.name == "install" else completion.show)(shell)


def _shell(name: str, meaning: str) -> Any:
    """Declare an option about completion."""
    return typer.Option(name, metavar="bash|zsh|fish", callback=_complete, is_eager=True, help=meaning)


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and exit")
    ] = False,
    install: Annotated[Shell | None, _shell("--install-completion", "let Tab complete commands and values")] = None,
    show: Annotated[Shell | None, _shell("--show-completion", "print the completion script")] = None,
) -> None:
    pass
