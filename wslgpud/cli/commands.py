"""The kind of command that all of ours are: help and usage errors are worded here, in one place."""

from __future__ import annotations

import difflib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import typer
from typer._click.exceptions import BadOptionUsage, BadParameter, MissingParameter, NoSuchOption, UsageError
from typer.core import TyperCommand, TyperGroup

from wslgpud import config as configuration
from wslgpud import words
from wslgpud.cli import help as helps
from wslgpud.config_key import ConfigError
from wslgpud.words import Message, say, t

#: what ``--plot`` without a name stands for: this terminal
TERMINAL = "-"
#: of a name that cannot be drawn the picture itself says so
_PICTURES = (".png", ".svg", ".html", ".pdf", ".jpg", ".jpeg", ".gif", ".webp")
_KINDS = {int: say("a whole number"), float: say("a number"), Path: say("a path")}


def language(file: Path | None = None) -> str:
    """Return the code of the language to speak: the configured one, else that of the locale."""
    try:
        setting = configuration.load(file, os.environ).config.alerts.language
    except ConfigError:  # the command itself says so
        setting = ""
    return words.chosen(setting, os.environ)


class _Spoken:
    """What commands and groups of them have in common."""

    def main(self, *args: Any, standalone_mode: bool = True, **options: Any) -> Any:
        """Run in the language of the reader; a mistake in the command line ends in one line and status 2."""
        words.use(language())
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **options)  # type: ignore[misc]  # a mixin
        try:
            status = super().main(*args, standalone_mode=False, **options)  # type: ignore[misc]
        except UsageError as error:
            where = error.ctx.command_path if error.ctx else "wslgpud"
            more = t("{what} (see '{command} --help')", what=_worded(error), command=where)
            typer.echo(f"wslgpud: {more}", err=True)
            status = error.exit_code
        except typer.Abort:
            end = t("given up")
            typer.echo(f"wslgpud: {end}", err=True)
            status = 1
        sys.exit(status if isinstance(status, int) else 0)

    def get_help(self, ctx: Any) -> str:
        """Return the help."""
        return helps.full(ctx)

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the first sentence of the help, all of it."""
        del limit
        return helps.short(self)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let ``--plot`` stand without a file, and word what is too much."""
        for number, text in enumerate(args):
            follows = "".join(args[number + 1 : number + 2])
            if text == "--":
                break
            if text == "--plot" and not follows.lower().endswith(_PICTURES):
                args[number] = f"--plot={TERMINAL}"
        extra, ctx.allow_extra_args = ctx.allow_extra_args, True
        try:
            rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        except UsageError as error:
            error.ctx = error.ctx or ctx
            raise
        ctx.allow_extra_args = extra
        if rest and not extra and not ctx.resilient_parsing:
            ctx.fail(t("unexpected argument: {words}", words=helps.listed(map(repr, rest))))
        return rest


class Command(_Spoken, TyperCommand):
    """A command."""


class Commands(_Spoken, TyperGroup):
    """A group of commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show the help where nothing is said and nothing can be done."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            typer.echo(self.get_help(ctx), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that is meant, or say which there are."""
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(args[0], self.commands)
            ctx.fail(words.current().text(_with_hint(say("there is no command {name}", name=args[0]), near)))
        return super().resolve_command(ctx, args)


class App(typer.Typer):
    """Commands under one name; each speaks the reader's language."""

    def __init__(self, *, no_args_is_help: bool = True, **options: Any) -> None:
        """Take Typer's options."""
        super().__init__(
            cls=Commands,
            no_args_is_help=no_args_is_help,
            add_completion=False,
            # A traceback dressed up with local variables could print a secret.
            pretty_exceptions_enable=False,
            rich_markup_mode=None,  # Typer's own console of Rich would write past wslgpud.cli.console
            context_settings={"help_option_names": ["-h", "--help"]},
            **options,
        )

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        """Add a command."""
        return super().command(name, cls=Command, **options)


def _worded(error: UsageError) -> Message:
    """Return what is wrong with a command line; Click says it in English."""
    if isinstance(error, NoSuchOption):
        return _with_hint(say("there is no option {name}", name=error.option_name), error.possibilities or ())
    if isinstance(error, BadOptionUsage) and error.ctx is not None:
        option = next((p for p in error.ctx.command.params if error.option_name in p.opts), None)
        flag = option is None or getattr(option, "is_flag", False)
        if flag:
            return say("{name} takes no value", name=error.option_name)
        return say("{name} needs a value", name=error.option_name)
    if isinstance(error, BadParameter) and error.param is not None:
        name = (
            max(error.param.opts, key=len)
            if error.param.param_type_name == "option"
            else helps.placeholder(error.param)
        )
        if isinstance(error, MissingParameter):
            return say("{name} is missing", name=t(name))
        if (form := _form(error.param, error.ctx)) is not None:
            return say("{name} must be {form}", name=t(name), form=form)
    return Message(error.format_message())


def _with_hint(what: Message, near: Any) -> Message:
    return say("{what}; did you mean {names}?", what=what, names=tuple(sorted(near))) if near else what


def _form(param: Any, context: Any) -> Message | None:
    """Return what a parameter's value may be; None where only the parser knows."""
    choices = helps.placeholder(param).split("|")
    if len(choices) > 1:
        return say("one of {names}", names=tuple(choices))
    hints = get_type_hints(inspect.unwrap(context.command.callback))
    kind = next((_KINDS[one] for one in _KINDS if one in _members(hints.get(param.name))), None)
    least = getattr(param, "min", None)
    if kind is None or least is None:
        return kind
    return say("{kind}, at least {least}", kind=kind, least=least)


def _members(hint: Any) -> tuple[Any, ...]:
    return (hint, *getattr(hint, "__args__", ()))
