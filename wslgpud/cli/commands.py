"""The base of all commands: rendering of help and usage errors in the reader's language."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import typer
from typer._click.exceptions import (
    BadOptionUsage,
    BadParameter,
    MissingParameter,
    NoArgsIsHelpError,
    NoSuchOption,
    UsageError,
)
from typer.core import TyperCommand, TyperGroup

from wslgpud import config as configuration
from wslgpud import words
from wslgpud.cli import help as helps
from wslgpud.config import ConfigError
from wslgpud.words import Message, MessageError, MessageLike, cause, say, t

#: environment variable that a shell's completion script sets when it asks
COMPLETES = "_WSLGPUD_COMPLETE"
#: value of ``--plot`` without a name: this terminal
TERMINAL = "-"
#: unknown suffixes are reported by the plot itself
_PICTURES = (".png", ".svg", ".html", ".pdf", ".jpg", ".jpeg", ".gif", ".webp")
_KINDS = {int: say("a whole number"), float: say("a number"), Path: say("a path")}


def language(file: Path | None = None) -> str:
    """Return the code of the output language: the configured one, else that of the locale."""
    with contextlib.suppress(ConfigError):  # the command itself reports it
        return words.chosen(configuration.load(file, os.environ).config.alerts.language, os.environ)
    return words.chosen("", os.environ)


class _LateCoercion:
    """Typer's coercion of a value, for which Pydantic is imported (80 ms): only where there is one to coerce.

    Typer asks ``RuntimeParam.coerce`` of ``typer._coercion``, and makes one itself where a parameter has none.
    """

    @staticmethod
    def coerce(value: Any, param: Any, ctx: Any) -> Any:
        """Return the value that a command gets."""
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        if isinstance(value, str) and param.type_descriptor.annotation is str and not several:
            return value
        from typer._coercion import build_runtime_param

        return build_runtime_param(param.type_descriptor).coerce(value, param=param, ctx=ctx)


class _LocalizedMixin:
    """The common part of commands and groups of commands."""

    def main(self, *args: Any, standalone_mode: bool = True, **options: Any) -> Any:
        """Run in the reader's language; errors that the user can fix (``MessageError``) end in a line and status 2."""
        words.use(language())
        if COMPLETES in os.environ:  # a shell asks for completion: Typer's classes for it are imported late
            from typer._completion_classes import completion_init

            completion_init()
        said: MessageLike
        try:
            status = super().main(*args, standalone_mode=False, **options)  # type: ignore[misc]  # a mixin
        except NoArgsIsHelpError as error:
            typer.echo(error.format_message(), err=True)
            sys.exit(error.exit_code)
        except UsageError as error:
            where = error.ctx.command_path if error.ctx else "wslgpud"
            said, status = say("{what} (see '{command} --help')", what=_worded(error), command=where), error.exit_code
        except typer.Abort:
            said, status = say("given up"), 1
        except MessageError as error:
            said, status = cause(error), 2
        else:
            if not standalone_mode:
                return status
            sys.exit(status if isinstance(status, int) else 0)
        from wslgpud.app.log import journal_prefix

        typer.echo(f"{journal_prefix(logging.ERROR)}wslgpud: {words.current().text(said)}", err=True)
        sys.exit(status)

    def get_help(self, ctx: Any) -> str:
        """Return the help."""
        return helps.full(ctx)

    def get_short_help_str(self, _: int = 0) -> str:
        """Return the first sentence of the help, all of it."""
        return helps.short(self)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept ``--plot`` without a file, and report surplus arguments."""
        for param in ctx.command.get_params(ctx):
            param._runtime_param = _LateCoercion  # noqa: SLF001 - where it is not looked at, nothing is lost but time
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
            ctx.fail(t("unexpected argument: {words}", words=words.current().listed(map(repr, rest))))
        return rest


class _Command(_LocalizedMixin, TyperCommand):
    pass


class CommandGroup(_LocalizedMixin, TyperGroup):
    """A group of commands."""

    def listed(self) -> list[Any]:
        """Return the commands for their list: each has a name and a help."""
        return [command for command in self.commands.values() if not command.hidden]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command, or list the existing ones."""
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(args[0], list(self.commands))
            ctx.fail(words.current().text(_with_hint(say("there is no command {name}", name=args[0]), near)))
        return super().resolve_command(ctx, args)


class CommandApp(typer.Typer):
    """A group of commands, in the reader's language."""

    def __init__(self, *, cls: type[CommandGroup] = CommandGroup, no_args_is_help: bool = True, **options: Any) -> None:
        super().__init__(
            cls=cls,
            no_args_is_help=no_args_is_help,
            add_completion=False,
            # A traceback with local variables could print a secret.
            pretty_exceptions_enable=False,
            rich_markup_mode=None,  # Typer's own Rich console would bypass wslgpud.cli.console
            context_settings={"help_option_names": ["-h", "--help"]},
            **options,
        )

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        """Add a command."""
        return super().command(name, cls=_Command, **options)


def _worded(error: UsageError) -> Message:
    """Return the message for a usage error; Click's own is English only."""
    if isinstance(error, NoSuchOption):
        return _with_hint(say("there is no option {name}", name=error.option_name), error.possibilities or ())
    if isinstance(error, BadOptionUsage) and error.ctx is not None:
        option = next((p for p in error.ctx.command.params if error.option_name in p.opts), None)
        if option is None or getattr(option, "is_flag", False):
            return say("{name} takes no value", name=error.option_name)
        return say("{name} needs a value", name=error.option_name)
    if isinstance(error, BadParameter) and (param := error.param) is not None:
        name = max(param.opts, key=len) if param.param_type_name == "option" else helps.placeholder(param)
        if isinstance(error, MissingParameter):
            return say("{name} is missing", name=t(name))
        if (form := _form(param, error.ctx)) is not None:
            return say("{name} must be {form}", name=t(name), form=form)
    return Message(error.format_message())


def _with_hint(what: Message, near: Any) -> Message:
    return say("{what}; did you mean {names}?", what=what, names=tuple(sorted(near))) if near else what


def _form(param: Any, context: Any) -> Message | None:
    """Return the valid values of a parameter; None where only the parser knows."""
    choices = helps.placeholder(param).split("|")
    if len(choices) > 1:
        return say("one of {names}", names=tuple(choices))
    hints = get_type_hints(inspect.unwrap(context.command.callback))
    hint = hints.get(param.name)
    kind = next((said for one, said in _KINDS.items() if one in (hint, *getattr(hint, "__args__", ()))), None)
    least = getattr(param, "min", None)
    return say("{kind}, at least {least}", kind=kind, least=least) if kind and least is not None else kind
