"""The answer of ``wslgpud fit``: its parts as a table, the verdict, and the settings that make it fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.text import Text

from wslgpud.advise.fit.estimate import Estimate
from wslgpud.cli.console import Console, table_of
from wslgpud.cli.fit_room import Usable
from wslgpud.cli.rows import bar
from wslgpud.words import Message, MessageLike, current, t
from wslgpud.words.units import size


class Answer(NamedTuple):
    """A question, its estimate and the verdict; ``room`` is None if no card answers."""

    name: str
    how: Sequence[MessageLike]
    #: the model's sizes and the plan, for ``--json``
    facts: dict[str, Any]
    found: Estimate
    room: Usable | None
    over: bool
    #: how it fits, or why not
    verdict: str
    #: each setting that makes it fit, and its result: total bytes, or tokens in the cache
    knobs: Sequence[tuple[Message, int]]
    unmeasured: Sequence[MessageLike] = ()
    notes: Sequence[str] = ()
    counted: str = "total_bytes"

    def document(self) -> dict[str, object]:
        """Return it for ``--json``."""
        text = current().text
        return {
            **self.facts,
            "parts_bytes": self.found.parts,
            "total_bytes": self.found.total_bytes,
            "usable_bytes": self.room.bytes if self.room else None,
            "usable_by": text(self.room.how) if self.room else None,
            "fits": not self.over if self.room else None,
            "unmeasured": [text(only) for only in self.unmeasured],
            "knobs": [{"turn": text(turn), self.counted: count} for turn, count in self.knobs],
        }

    def show(self) -> None:
        """Print it."""
        console, found, room = Console(), self.found, self.room
        console.print(Text.assemble((self.name, "bold"), "  " * bool(self.name), current().listed(self.how)))
        whole = max(found.total_bytes, room.bytes if room else 0)
        table = table_of("<", "<", "<", first=1)
        for part, taken in found.parts.items():
            table.add_row(current().template(part), size(taken), bar(taken / whole, 24, "cyan"))
        peak = bar(found.total_bytes / whole, 24, "red" if self.over else "green")
        table.add_row(Text(t("at its peak"), "bold"), Text(size(found.total_bytes), "bold"), peak)
        if room:
            table.add_row(t("usable"), size(room.bytes), bar(room.bytes / whole, 24, "bright_black"))
        console.print(table)
        if room is None:
            console.print(t("No GPU answers here: give the usable VRAM with --usable 14.5GiB."))
        else:
            self._judge(console)
        for note in self.notes:
            console.print(note, style="dim")

    def _judge(self, console: Console) -> None:
        console.print(Text(self.verdict, "bold red" if self.over else "bold green"))
        if self.over:
            for turn, count in self.knobs:
                said = size(count) if self.counted == "total_bytes" else t("room for {count} tokens", count=count)
                console.print("  → " + t("{title}: {text}", title=turn, text=said))
            if not self.knobs:
                console.print("  " + t("No setting makes it fit: use a smaller model or a bigger card."))
        if self.unmeasured:
            said = t("Computed only, not measured on a real card: {parts}.", parts=tuple(self.unmeasured))
            console.print(said, style="dim")


def verdict(found: Estimate, room: Usable | None) -> str:
    """Return the message whether it fits."""
    if room is None:
        return ""
    left = room.bytes - found.total_bytes
    if left < 0:
        return t("It does not fit: {excess_bytes} too much ({how}).", excess_bytes=-left, how=room.how)
    return t("It fits, with {spare_bytes} to spare ({how}).", spare_bytes=left, how=room.how)
