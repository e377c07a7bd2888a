"""The doctor's findings as a terminal screen: problems first, then notes, what is good in one line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wslgpud.advise.doctor.findings import Finding

MARKS = {
    "problem": ("✗", "bold red"),
    "note": ("!", "yellow"),
    "good": ("✓", "green"),
    "could not tell": ("?", "dim"),
    "not applicable": ("·", "dim"),
}


def print_findings(
    findings: Sequence[Finding], *, everything: bool = False, console: Console | None = None
) -> None:
    """Print the findings; ``everything`` shows the good ones in full as well."""
    console = console or Console(highlight=False)
    groups = {state: [f for f in findings if f.state == state] for state in MARKS}
    for state in ("problem", "note"):
        for finding in groups[state]:
            _print_full(console, finding)
    for state in ("good", "could not tell", "not applicable"):
        if everything:
            for finding in groups[state]:
                _print_line(console, finding)
        elif groups[state] and state != "not applicable":
            mark, style = MARKS[state]
            titles = ", ".join(f.title for f in groups[state])
            console.print(_hanging(Text(mark, style), Text.assemble((f"{state}: ", style), titles)))
    console.print(Text(_summary(groups["problem"], groups["note"], everything=everything), "bold"))


def _print_full(console: Console, finding: Finding) -> None:
    _print_line(console, finding)
    console.print(_hanging(Text(" "), Text(finding.why, "dim")))
    for line in finding.remedy.splitlines():
        # Commands are there to be copied: they are not broken into lines.
        console.print(Text.assemble("  ", (f"→ {line}", "cyan")), soft_wrap=True)
    console.print()


def _print_line(console: Console, finding: Finding) -> None:
    mark, style = MARKS[finding.state]
    text = Text.assemble((f"{finding.title}: ", style), finding.found)
    console.print(_hanging(Text(mark, style), text))


def _hanging(mark: Text, text: Text) -> Table:
    """Return text of which every line begins behind the mark."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row(mark, text)
    return grid


def _summary(problems: Sequence[Finding], notes: Sequence[Finding], *, everything: bool) -> str:
    if not problems and not notes:
        return "\nNothing to mend."
    counts = [
        f"{len(found)} {word}{'s' * (len(found) > 1)}"
        for found, word in ((problems, "problem"), (notes, "note"))
        if found
    ]
    return f"{'' if everything else chr(10)}{', '.join(counts)}." + (
        "" if everything else " --all shows everything."
    )
