"""The doctor's findings as a terminal screen: problems first, then notes, what is good in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from wslgpud.advise.doctor.chinese import ALL, STATES, summary, translated
from wslgpud.advise.doctor.findings import Finding, State
from wslgpud.cli.console import Console

MARKS: Mapping[State, tuple[str, str]] = {
    "problem": ("✗", "bold red"),
    "note": ("!", "yellow"),
    "good": ("✓", "green"),
    "could not tell": ("?", "dim"),
    "not applicable": ("·", "dim"),
}


def print_findings(
    findings: Sequence[Finding],
    *,
    everything: bool = False,
    console: Console | None = None,
    tongue: str = "en",
) -> None:
    """Print the findings; ``everything`` shows the good ones in full as well; ``tongue`` is en or zh."""
    console = console or Console()
    if tongue == "zh":
        findings = [translated(finding) for finding in findings]
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
            titles = ("、" if tongue == "zh" else ", ").join(f.title for f in groups[state])
            word = STATES[state] if tongue == "zh" else state
            console.print(_hanging(Text(mark, style), Text.assemble((f"{word}: ", style), titles)))
    counts = len(groups["problem"]), len(groups["note"])
    if tongue == "zh":
        end = summary(*counts) + ("" if everything else ALL)
    else:
        end = _summary(*counts) + ("" if everything or not any(counts) else " --all shows everything.")
    console.print(Text(end if everything else f"\n{end}", "bold"))


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


def _summary(problems: int, notes: int) -> str:
    counts = [
        f"{number} {word}{'s' * (number > 1)}"
        for number, word in ((problems, "problem"), (notes, "note"))
        if number
    ]
    return f"{', '.join(counts)}." if counts else "Nothing to mend."
