"""The doctor's findings as a terminal screen: problems first, then notes, what is good in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from wslgpud.advise.doctor.findings import Finding, State
from wslgpud.cli.console import Console
from wslgpud.words import current, say, says, sentences, t, template

MARKS: Mapping[State, tuple[str, str]] = {
    "problem": ("✗", "bold red"),
    "note": ("!", "yellow"),
    "good": ("✓", "green"),
    "could not tell": ("?", "dim"),
    "not applicable": ("·", "dim"),
}


#: what each is called; the last of them are not worth a line unless asked for
STATES: Mapping[State, str] = {
    "problem": template("problem"),
    "note": template("note"),
    "good": template("good"),
    "could not tell": template("could not tell"),
    "not applicable": template("not applicable"),
}


def print_findings(
    findings: Sequence[Finding], *, everything: bool = False, console: Console | None = None
) -> None:
    """Print the findings; ``everything`` shows the good ones in full as well."""
    console = console or Console()
    groups = {state: [f for f in findings if f.state == state] for state in MARKS}
    grave: tuple[State, ...] = ("problem", "note")
    others: tuple[State, ...] = ("good", "could not tell", "not applicable")
    for state in grave:
        for finding in groups[state]:
            _print_full(console, finding)
    for state in others:
        if everything:
            for finding in groups[state]:
                _print_line(console, finding)
        elif groups[state] and state != "not applicable":
            mark, style = MARKS[state]
            titles = current().listed(finding.title for finding in groups[state])
            console.print(_hanging(Text(mark, style), _titled(t(STATES[state]), style, titles)))
    end = _summary(len(groups["problem"]), len(groups["note"]))
    if everything:
        console.print(Text(end, "bold"))
    else:
        console.print(Text("\n" + current().text(sentences((end, say("--all shows everything.")))), "bold"))


def _print_full(console: Console, finding: Finding) -> None:
    _print_line(console, finding)
    console.print(_hanging(Text(" "), Text(current().text(finding.why), "dim")))
    for line in current().text(finding.remedy).splitlines():
        # Commands are there to be copied: they are not broken into lines.
        console.print(Text.assemble("  ", (f"→ {line}", "cyan")), soft_wrap=True)
    console.print()


def _print_line(console: Console, finding: Finding) -> None:
    mark, style = MARKS[finding.state]
    words = current()
    console.print(
        _hanging(Text(mark, style), _titled(words.text(finding.title), style, words.text(finding.found)))
    )


def _titled(title: str, style: str, text: str) -> Text:
    """Return ``title: text``, the title in its colour."""
    before, _, after = t("{title}: {text}").partition("{text}")
    return Text.assemble((before.replace("{title}", title), style), text, after)


def _hanging(mark: Text, text: Text) -> Table:
    """Return text of which every line begins behind the mark."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column()
    grid.add_column(overflow="fold")
    grid.add_row(mark, text)
    return grid


def _summary(problems: int, notes: int) -> str:
    counts = (
        *([says("{count} problem", "{count} problems", count=problems)] if problems else ()),
        *([says("{count} note", "{count} notes", count=notes)] if notes else ()),
    )
    return t("{counts}.", counts=counts) if counts else t("Nothing to fix.")
