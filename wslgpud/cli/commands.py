"""The base of all commands: parameters from annotations, help and usage errors in the reader's language."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import click
from click.exceptions import NoArgsIsHelpError

from wslgpud import config as configuration
from wslgpud import words
from wslgpud.cli import help as helps
from wslgpud.config import ConfigError
from wslgpud.words import Message, MessageError, MessageLike, cause, say, t

#: value of ``--plot`` without a name: this terminal
TERMINAL = "-"
#: unknown suffixes are reported by the plot itself
_PICTURES = (".png", ".svg", ".html", ".pdf", ".jpg", ".jpeg", ".gif", ".webp")
_RANGES: dict[Any, Any] = {int: click.IntRange, float: click.FloatRange}
_KINDS = {click.IntRange: say("a whole number"), click.FloatRange: say("a number")}

Function = TypeVar("Function", bound=Callable[..., Any])
#: makes a parameter; its keywords ``min`` and ``max`` are bounds of its value
Declared = partial[Any]


def language(file: Path | None = None) -> str:
    """Return the code of the output language: the configured one, else that of the locale."""
    with contextlib.suppress(ConfigError):  # the command itself reports it
        return words.chosen(configuration.load(file, os.environ).config.alerts.language, os.environ)
    return words.chosen("", os.environ)


class CliCommand(click.Command):
    """A command that calls a function, whose annotations declare its parameters and whose docstring is its help."""

    allow_extra_args = True  # reported in the reader's language

    def __init__(self, name: str | None = None, function: Callable[..., Any] | None = None, **options: Any) -> None:
        if function is not None:
            taken = inspect.signature(function, eval_str=True).parameters.values()
            params = [_parameter(one) for one in taken if get_origin(one.annotation) is Annotated]
            called = function if len(params) == len(taken) else click.pass_context(function)
            options |= {"callback": called, "params": params, "help": inspect.getdoc(function)}
        super().__init__(name, context_settings={"help_option_names": ["-h", "--help"]}, **options)

    def main(self, *args: Any, standalone_mode: bool = True, **options: Any) -> Any:
        """Run in the reader's language; errors that the user can fix (``MessageError``) end in a line and status 2."""
        words.use(language())
        message: MessageLike
        try:
            status = super().main(*args, standalone_mode=False, **options)  # type: ignore[call-overload]
        except NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            sys.exit(error.exit_code)
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx else "wslgpud"
            message = say("{what} (see '{command} --help')", what=_worded(error), command=where)
            status = error.exit_code
        except click.Abort:
            message, status = say("given up"), 1
        except MessageError as error:
            message, status = cause(error), 2
        else:
            if not standalone_mode:
                return status
            sys.exit(status if isinstance(status, int) else 0)
        from wslgpud.app.process import journal_prefix

        click.echo(f"{journal_prefix(logging.ERROR)}wslgpud: {words.current().text(message)}", err=True)
        sys.exit(status)

    def invoke(self, ctx: click.Context) -> Any:
        """Call the function; Ctrl-C ends it silently, with the status that shells expect."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(130)

    def get_help(self, ctx: click.Context) -> str:
        """Return the help."""
        return helps.full(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let ``--plot`` do without a file before another word, and report surplus arguments."""
        # In the arguments of another program (guard, inside) the word is that program's.
        plots = any("--plot" in param.opts for param in self.params)
        for number, (text, follows) in enumerate(pairwise([*args, ""]) if plots else ()):
            if text == "--":
                break
            if text == "--plot" and not follows.lower().endswith(_PICTURES):
                args[number] = f"--plot={TERMINAL}"
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise
        if rest and not ctx.resilient_parsing and not isinstance(self, click.Group):
            ctx.fail(t("unexpected argument: {words}", words=words.current().listed(map(repr, rest))))
        return rest


class CommandGroup(CliCommand, click.Group):
    """A group of commands."""

    def command(self, name: str = "", **options: Any) -> Callable[[Function], Function]:  # type: ignore[override]
        """Add a function as a command; it remains a function."""

        def added(function: Function) -> Function:
            self.add_command(CliCommand(name or function.__name__, function, **options))
            return function

        return added

    def sections(self) -> dict[str, list[click.Command]]:
        """Return the commands for their list, by heading: each has a name and a help."""
        return {t("Commands:"): [command for command in self.commands.values() if not command.hidden]}

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Return the commands with this prefix, else options."""
        from click.shell_completion import CompletionItem

        known = (command for section in self.sections().values() for command in section)
        matches = (command for command in known if str(command.name).startswith(incomplete))
        items = [CompletionItem(command.name, help=helps.short(command)) for command in matches]
        return items or click.Command.shell_complete(self, ctx, incomplete)


def _parameter(parameter: inspect.Parameter) -> click.Parameter:
    """Return the parameter that an annotation declares: ``Annotated[list[int] | None, option(...)]``."""
    hint, declared = get_args(parameter.annotation)
    if NoneType in get_args(hint):
        (hint,) = {*get_args(hint)} - {NoneType}
    several = get_origin(hint) is list
    kind = get_args(hint)[0] if several else hint
    is_option, given = declared.func is click.Option, parameter.default is not inspect.Parameter.empty
    facts = {**declared.keywords, "required": not given}
    bounds = {name: facts.pop(name) for name in ("min", "max") if name in facts}
    if get_origin(kind) is Literal:
        facts["type"] = click.Choice(get_args(kind))
    else:
        facts["type"] = _RANGES[kind](**bounds) if kind in _RANGES else kind
        facts["shell_complete"] = facts.get("shell_complete") or _files
    if several:
        facts |= {"callback": lambda *values: [*values[-1]], **({"multiple": True} if is_option else {"nargs": -1})}
    if kind is bool:
        facts["is_flag"] = True
    if given:
        facts["default"] = parameter.default
    made: click.Parameter = declared.func([parameter.name, *declared.args[0]], **facts)
    return made


def _files(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def _worded(error: click.UsageError) -> Message:
    """Return the message for a usage error; Click's own is English only."""
    if isinstance(error, (click.NoSuchCommand, click.NoSuchOption)):
        what = (
            say("there is no command {name}", name=error.command_name)
            if isinstance(error, click.NoSuchCommand)
            else say("there is no option {name}", name=error.option_name)
        )
        near = tuple(sorted(error.possibilities or ()))
        return say("{what}; did you mean {names}?", what=what, names=near) if near else what
    if isinstance(error, click.BadOptionUsage) and error.ctx is not None:
        option = next((p for p in error.ctx.command.params if error.option_name in p.opts), None)
        if option is None or getattr(option, "is_flag", False):
            return say("{name} takes no value", name=error.option_name)
        return say("{name} needs a value", name=error.option_name)
    if isinstance(error, click.BadParameter) and (param := error.param) is not None:
        name = max(param.opts, key=len) if isinstance(param, click.Option) else helps.placeholder(param)
        if isinstance(error, click.MissingParameter):
            return say("{name} is missing", name=t(name))
        if (form := _form(param)) is not None:
            return say("{name} must be {form}", name=t(name), form=form)
    return Message(error.format_message())


def _form(param: click.Parameter) -> Message | None:
    """Return the valid values of a parameter; None where only the parser knows."""
    if isinstance(param.type, click.Choice):
        return say("one of {names}", names=tuple(param.type.choices))
    kind, minimum = _KINDS.get(type(param.type)), getattr(param.type, "min", None)
    return say("{kind}, at least {least}", kind=kind, least=minimum) if kind and minimum is not None else kind
