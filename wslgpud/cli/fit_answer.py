"""The answer of ``wslgpud fit``: its parts as a table, the verdict, and the settings that make it fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.text import Text

from wslgpud.advise.fit.plan import Estimate
from wslgpud.cli.console import Console, table_of
from wslgpud.cli.fit_room import Usable
from wslgpud.cli.rows import bar
from wslgpud.words import Message, MessageLike, current, t
from wslgpud.words.units import size

FITS, OVER, UNKNOWN = 0, 1, 3


class Answer(NamedTuple):
    """A question and its estimate; ``room`` is None if no card answers."""

    name: str
    how: Sequence[MessageLike]
    #: the model's sizes and the plan, for ``--json``
    facts: dict[str, Any]
    estimate: Estimate
    room: Usable | None
    #: each setting that makes it fit, and its result: total bytes, or tokens in the cache
    knobs: Sequence[tuple[Message, int]]
    unmeasured: Sequence[MessageLike] = ()
    notes: Sequence[str] = ()
    counted: str = "total_bytes"
    #: vLLM's own verdict, and its words
    refused: bool | None = None
    own_verdict: str = ""

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None: there is no card, or the room lies between the least and the most."""
        if self.room is None:
            return None
        if self.refused is not None:
            return not self.refused
        if self.estimate.total_bytes > self.room.bytes:
            return False
        max_bytes = self.estimate.max_bytes
        return True if max_bytes is not None and max_bytes <= self.room.bytes else None

    @property
    def status(self) -> int:
        """The exit status."""
        if self.room is None or self.fits:
            return FITS
        return UNKNOWN if self.fits is None else OVER

    def document(self) -> dict[str, object]:
        """Return it for ``--json``."""
        text = current().text
        return {
            **self.facts,
            "parts_bytes": self.estimate.parts,
            "total_bytes": self.estimate.total_bytes,
            "max_bytes": self.estimate.max_bytes,
            "usable_bytes": self.room.bytes if self.room else None,
            "usable_by": text(self.room.how) if self.room else None,
            "fits": self.fits,
            "unmeasured": [text(only) for only in self.unmeasured],
            "knobs": [{"turn": text(turn), self.counted: count} for turn, count in self.knobs],
        }

    def show(self) -> None:
        """Print it."""
        console, estimate, room = Console(), self.estimate, self.room
        console.print(Text.assemble((self.name, "bold"), "  " * bool(self.name), current().listed(self.how)))
        scale_bytes = max(estimate.total_bytes, room.bytes if room else 0, estimate.max_bytes or 0)
        table = table_of("<", "<", "<", first=1)
        for part, taken in estimate.parts.items():
            table.add_row(current().template(part), size(taken), bar(taken / scale_bytes, 24, "cyan"))
        colour = {True: "green", False: "red", None: "yellow" if room else "green"}[self.fits]
        peak = t("at its peak") if estimate.spread_bytes == 0 else t("at least")
        filled = bar(estimate.total_bytes / scale_bytes, 24, colour)
        table.add_row(Text(peak, "bold"), Text(size(estimate.total_bytes), "bold"), filled)
        if estimate.spread_bytes and estimate.max_bytes:
            table.add_row(
                t("at most"), size(estimate.max_bytes), bar(estimate.max_bytes / scale_bytes, 24, "bright_black")
            )
        if room:
            table.add_row(t("usable"), size(room.bytes), bar(room.bytes / scale_bytes, 24, "bright_black"))
        console.print(table)
        if room is None:
            console.print(t("No GPU answers here: give the usable VRAM with --usable 14.5GiB."))
        else:
            console.print(Text(self.verdict(room), f"bold {colour}"))
            self._advise(console)
        for note in self.notes:
            console.print(note, style="dim")

    def _advise(self, console: Console) -> None:
        if self.fits is False:
            for turn, count in self.knobs:
                text = size(count) if self.counted == "total_bytes" else t("room for {count} tokens", count=count)
                console.print("  → " + t("{title}: {text}", title=turn, text=text))
            if not self.knobs:
                console.print("  " + t("No setting makes it fit: use a smaller model or a bigger card."))
        if self.unmeasured:
            text = t("Computed only, not measured on a real card: {parts}.", parts=tuple(self.unmeasured))
            console.print(text, style="dim")

    def verdict(self, room: Usable) -> str:
        """Return the message whether it fits."""
        if self.own_verdict:
            return self.own_verdict
        left, max_bytes = room.bytes - self.estimate.total_bytes, self.estimate.max_bytes
        if left < 0:
            return t("It does not fit: {excess_bytes} too much ({how}).", excess_bytes=-left, how=room.how)
        if max_bytes is None:
            return t("It may not fit: it takes {min_bytes} or more ({how}).", min_bytes=room.bytes - left, how=room.how)
        if max_bytes > room.bytes:
            between = {"min_bytes": room.bytes - left, "max_bytes": max_bytes}
            return t("It may not fit: it takes between {min_bytes} and {max_bytes} ({how}).", **between, how=room.how)
        return t("It fits, with {spare_bytes} to spare ({how}).", spare_bytes=room.bytes - max_bytes, how=room.how)
