"""``wslgpud doctor``: is this machine set up for training, and if not, what to do."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import click
from rich.table import Table
from rich.text import Text

from wslgpud.advise import doctor as doctors
from wslgpud.advise.doctor import checking
from wslgpud.advise.doctor.bundle import write
from wslgpud.advise.doctor.checking import CheckResult, State
from wslgpud.app.process import called, host_at
from wslgpud.cli import common
from wslgpud.cli.common import flag, loaded, option, refused
from wslgpud.cli.console import Console, table_of
from wslgpud.words import Message, current, say, says, sentences, t, template


def doctor(
    config: common.Config = None,
    as_json: common.Json = False,
    everything: Annotated[bool, flag("--all", "show passed checks, too")] = False,
    bundle: Annotated[
        Path | None, option("--bundle", "FILE", "write a support archive (.tar.gz), secrets and names masked")
    ] = None,
    brief: Annotated[bool, flag("--brief", "one line for each problem")] = False,
    windows: Annotated[
        bool, flag("--windows", "try each part of the Windows side instead; shows a notification there")
    ] = False,
    python: Annotated[list[Path] | None, common.PYTHON] = None,
    no_torch: Annotated[bool, flag("--no-torch", "do not start Python to check torch")] = False,
    state: common.State = None,
    host_root: common.HostRoot = None,
) -> None:
    """Check how this machine is set up; each problem comes with its fix. Exit status 1 if there are any.

    With --bundle the exit status only says whether the archive was written. With --windows each part that wslgpud uses
    in Windows is tried once, which takes up to a minute: PowerShell, the probe, a notification, and a scheduled task
    that is created, run and removed.

    Examples:
        wslgpud doctor
        wslgpud doctor --all  # passed checks, too
        wslgpud doctor --bundle support.tar.gz  # everything that a bug report needs
        wslgpud doctor --windows --bundle support.tar.gz  # and how the Windows side works
    """
    settings = loaded(config).config
    host = host_at(host_root)
    tried = doctors.run(host, settings, windows=True) if windows else []
    findings = list(tried)
    if bundle is not None or not windows:
        facts = None
        if host.live and not no_torch:
            named = [str(file) for file in python or ()] or [settings.stress.python]
            facts = [checking.ask(one, os.environ, common.data_folder(state)) for one in named]
        findings += doctors.run(host, settings, facts, str(state) if state else None)
    if as_json:  # for programs: the same in every locale
        english = [{name: str(value) for name, value in finding._asdict().items()} for finding in findings]
        common.print_json(english)
    elif tried or bundle is None:
        if brief:
            print_brief(tried or findings)
        else:
            print_findings(tried or findings, everything=everything or windows)
    if bundle is not None:
        with refused("cannot write {path}: {why}", path=str(bundle)):
            count, path = len(write(bundle, host, settings, findings)), str(bundle)
        message = template("wrote {path}: {count} files, names and secrets masked. Look through it before sharing it.")
        click.echo(t(message, path=path, count=count), err=as_json)
    # With an archive, the exit status says whether it was written: problems are the reason for making one.
    if bundle is None and any(finding.state == "problem" for finding in findings):
        raise SystemExit(1)


#: mark and colour of each state; the last ones are shown only on request
MARKS: Mapping[State, tuple[str, str]] = {
    "problem": ("✗", "bold red"),
    "note": ("!", "yellow"),
    "good": ("✓", "green"),
    "could not tell": ("?", "dim"),
    "not applicable": ("·", "dim"),
}


def print_findings(
    findings: Sequence[CheckResult], *, everything: bool = False, console: Console | None = None
) -> None:
    """Print the findings; ``everything`` includes the good ones in full."""
    console = console or Console()
    for state, (mark, style) in MARKS.items():
        group, full = [finding for finding in findings if finding.state == state], state in ("problem", "note")
        if full or everything:
            for finding in group:
                _print(console, finding, full=full)
        elif group and state != "not applicable":
            titles = current().listed(finding.title for finding in group)
            console.print(_hanging(Text(mark, style), _titled(current().label("finding", state), style, titles)))
    counts = _counts(findings)
    end = t("{counts}.", counts=counts) if counts else t("Nothing to fix.")
    if not everything:
        asks = any(finding.id == "wsl.interop" and finding.state == "good" for finding in findings)
        more = (say("--windows tries the Windows side."),) if asks else ()
        end = "\n" + current().text(sentences((end, say("--all shows everything."), *more)))
    console.print(Text(end, "bold"))


def print_brief(findings: Sequence[CheckResult]) -> None:
    """Print one line per problem, and how to see the rest."""
    console = Console()
    for finding in findings:
        if finding.state == "problem":
            _print(console, finding, full=False)
    if counts := _counts(findings):
        console.print(Text(t("{counts}: {command} says what to do.", counts=counts, command=f"{called()} doctor")))


def _counts(findings: Sequence[CheckResult]) -> tuple[Message, ...]:
    problems, notes = (sum(finding.state == state for finding in findings) for state in ("problem", "note"))
    return (
        *([says("{count} problem", "{count} problems", count=problems)] if problems else ()),
        *([says("{count} note", "{count} notes", count=notes)] if notes else ()),
    )


def _print(console: Console, finding: CheckResult, *, full: bool) -> None:
    """Print a finding, in full with its importance and its remedy."""
    (mark, style), words = MARKS[finding.state], current()
    console.print(_hanging(Text(mark, style), _titled(words.text(finding.title), style, words.text(finding.found))))
    if not full:
        return
    console.print(_hanging(Text(" "), Text(words.text(finding.why), "dim")))
    for line in words.text(finding.remedy).splitlines():
        # Commands are meant to be copied: they are not wrapped.
        console.print(Text.assemble("  ", (f"→ {line}", "cyan")), soft_wrap=True)
    console.print()


def _titled(title: str, style: str, text: str) -> Text:
    """Return ``title: text``, the title in its colour."""
    before, _, after = t("{title}: {text}").partition("{text}")
    return Text.assemble((before.replace("{title}", title), style), text, after)


def _hanging(mark: Text, text: Text) -> Table:
    """Return text with every line indented behind the mark."""
    grid = table_of("<", "~", rows=[(mark, text)], gap=1)
    grid.columns[1].overflow = "fold"
    return grid
