"""Commands: parse, call, print. A command's module is imported only when that command is used."""

from __future__ import annotations

import importlib
from collections import UserDict
from functools import cache
from typing import Any, Literal

import click

from wslgpud import __version__
from wslgpud.cli.commands import CliCommand, CommandGroup
from wslgpud.words import t, template

#: in the order of the help, with the purpose of each in the words of its own help, so that a list needs no import;
#: each names its module, which has an ``app`` (a group) or a function of that name
SECTIONS = {
    template("Watch:"): {
        "status": "Show the state of this machine, from the running daemon, else sampled on the spot.",
        "monitor": "Watch the machine live in this terminal, through the running daemon, else sampled on the spot.",
        "alerts": "List open alerts, send a test message, silence rules.",
    },
    template("Understand:"): {
        "incidents": "List incidents, or show one: its subject over time, who grew, how it ended.",
        "history": "Show recorded metrics: drawn on the terminal, as PNG, SVG, CSV, JSON or Parquet.",
        "export": "Export the history as OpenMetrics (for promtool), CSV or Parquet.",
        "record": "Record the risk engine's input, sample by sample, until Ctrl-C.",
        "replay": "Run the risk engine over recordings, or with --since over your own history, faster than real time.",
        "capture": "Copy the files that wslgpud reads here,"
        " with names, serials and addresses masked, for a bug report.",
    },
    template("Prevent:"): {
        "doctor": "Check how this machine is set up; each problem comes with its fix. Exit status 1 if there are any.",
        "fit": "Say whether a model fits on this card, part by part.",
        "sweep": "Run a command with each value; measure RAM, VRAM and time; stop before a value that would not fit.",
        "guard": "Run a build or a training under supervision:"
        " as many jobs as fit, a time limit, a log, the peaks at the end.",
        "inside": "Run a PyTorch training so that the daemon sees the memory that it retains with each step.",
        "brake": "Pause the job that is about to use up memory, instead of losing it.",
        "stress": "Test the GPU's memory now if it is idle: sizes, speed, spill, data.",
    },
    template("Set up:"): {
        "run": "Run the daemon: sample this machine, answer Prometheus, warn before memory runs out.",
        "service": "Install, upgrade, inspect or remove the daemon as a service that starts with the machine.",
        "config": "Show, check or write the configuration.",
        "wslconfig": "Check .wslconfig and wsl.conf, compare with the running VM, switch between presets.",
        "db": "Inspect, check, back up or compact the history's database.",
        "dashboards": "Write this version's dashboards for Grafana.",
        "rules": "Write this version's alert rules for Prometheus.",
    },
}
COMMANDS = {name: purpose for section in SECTIONS.values() for name, purpose in section.items()}
#: commands in the module of another
_BESIDE = {
    "monitor": "status",
    "incidents": "alerts",
    "export": "history",
    "db": "history",
    "record": "replay",
    "capture": "replay",
    "inside": "guard",
    "sweep": "guard",
    "run": "service",
    "dashboards": "config",
    "rules": "config",
}


@cache
def _command(name: str) -> click.Command:
    module = importlib.import_module(f"wslgpud.cli.{_BESIDE.get(name, name)}")
    found = getattr(module, "app" if hasattr(module, "app") and name not in _BESIDE else name)
    if isinstance(found, CommandGroup):
        found.name, found.help = name, found.help or COMMANDS[name]
        return found
    command = CliCommand(name, found)
    # Arguments after another program's name belong to that program.
    command.allow_interspersed_args = name not in ("guard", "inside")
    return command


class _LazyCommands(UserDict[str, Any]):
    """The commands by name, each imported on access: 'wslgpud guard' needs no database."""

    def __getitem__(self, name: str) -> click.Command:
        return _command(name) if name in self.data else super().__getitem__(name)


class _Root(CommandGroup):
    def sections(self) -> dict[str, list[click.Command]]:
        """Return the commands for their list, without importing them, which takes a second."""
        return {
            t(title): [click.Command(name, help=purpose) for name, purpose in section.items()]
            for title, section in SECTIONS.items()
        }


def completion_script(shell: Literal["bash", "zsh", "fish"]) -> str:
    """Return the script for a shell to load."""
    from click.shell_completion import get_completion_class

    asking = get_completion_class(shell)(click.Command("wslgpud"), {}, "wslgpud", "_WSLGPUD_COMPLETE")
    return (asking.source_template % asking.source_vars()).rstrip()


def _complete(context: click.Context, _param: click.Parameter, shell: Any) -> None:
    if shell is not None and not context.resilient_parsing:
        print(completion_script(shell))
        context.exit()


app = _Root(
    "wslgpud",
    help="""Watches GPU, RAM and swap under WSL2 and warns before memory runs out.

    Examples:
    wslgpud status  # the state of this machine
    wslgpud monitor  # the machine, live
    wslgpud incidents  # incidents of the last 30 days
    wslgpud doctor  # mistakes in the setup of this machine, with their fixes
    """,
    commands=_LazyCommands(COMMANDS),
    params=[
        click.Option(
            ["--show-completion"],
            type=click.Choice(("bash", "zsh", "fish")),
            metavar="bash|zsh|fish",
            help="print the completion script for Tab; it goes to the end of the shell's start file",
            callback=_complete,
            is_eager=True,
            expose_value=False,
        )
    ],
)
click.version_option(__version__, message="wslgpud %(version)s", help="print the version and exit")(app)
