"""The answer of ``wslgpud fit``: its parts as a table, the verdict, and the settings that make it fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from wslgpud.advise.fit.plan import Estimate, Plan
from wslgpud.advise.fit.vllm import ServingPlan
from wslgpud.cli.chart import bar
from wslgpud.cli.console import Console, table_of
from wslgpud.cli.fit_room import Usable
from wslgpud.model import NOTHING_SAID
from wslgpud.words import Message, MessageLike, current, say, t
from wslgpud.words.units import size

# Sizes of cards that people have, and what WSL2 and a desktop leave of them (6 to 9 % are theirs).
_COMMON_GIB, _USABLE = (8, 12, 16, 24, 32, 48, 80, 96), 0.92


@dataclass(frozen=True)
class Answer:
    """A question and its estimate; ``room`` is None if no card answers."""

    name: str
    plan: Plan | ServingPlan
    #: the plan in words
    how: Sequence[MessageLike]
    estimate: Estimate
    room: Usable | None
    #: whether it fits, None: that is not known; and what is said of it
    verdict: tuple[bool | None, Message]
    #: each setting that makes it fit, and its result: total bytes, or tokens in the cache
    knobs: Sequence[tuple[Message, int]] = ()
    unmeasured: Sequence[MessageLike] = ()
    note: MessageLike = ""
    counted: str = "total_bytes"
    #: further fields for ``--json``
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """The exit status."""
        return 0 if self.room is None else {True: 0, False: 1, None: 3}[self.verdict[0]]

    def document(self) -> dict[str, object]:
        """Return it for ``--json``."""
        text = current().text
        return {
            "model": {"name": self.name, "parameters": self.estimate.parameters},
            "plan": asdict(self.plan),
            **self.more,
            "parts_bytes": self.estimate.parts,
            "total_bytes": self.estimate.total_bytes,
            "max_bytes": self.estimate.max_bytes,
            "usable_bytes": self.room.bytes if self.room else None,
            "usable_by": text(self.room.how) if self.room else None,
            "fits": self.verdict[0],
            "unmeasured": [text(only) for only in self.unmeasured],
            "knobs": [{"turn": text(turn), self.counted: count} for turn, count in self.knobs],
        }

    def show(self) -> None:
        """Print it."""
        console, estimate, (fits, verdict) = Console(), self.estimate, self.verdict
        colour = {True: "green", False: "red", None: "yellow" if self.room else "green"}[fits]
        rows = [(current().template(part), taken, "", "cyan") for part, taken in estimate.parts.items()]
        peak = t("at its peak") if estimate.spread_bytes == 0 else t("at least")
        rows.append((peak, estimate.total_bytes, "bold", colour))
        if estimate.max_bytes and estimate.spread_bytes:
            rows.append((t("at most"), estimate.max_bytes, "", "bright_black"))
        if self.room:
            rows.append((t("usable"), self.room.bytes, "", "bright_black"))
        table, scale_bytes = table_of("<", "<", "<", first=1), max(taken for _, taken, *_ in rows)
        for name, taken, style, filled in rows:
            table.add_row(Text(name, style), Text(size(taken), style), bar(taken / scale_bytes, 24, filled))
        # Chinese counts in hundreds of millions.
        unit, digits = (1e8, ".4g") if current().code == "zh" else (1e9, ".2f")
        many = say("{number} B parameters", number=f"{estimate.parameters / unit:{digits}}")
        how = current().listed([many, *self.how] if estimate.parameters else self.how)
        console.print(Text.assemble((self.name, "bold"), "  " * bool(self.name), how))
        console.print(table)
        console.print(Text(current().text(verdict), f"bold {colour}" if self.room else ""))
        if self.room is None:
            console.print(on_common_cards(estimate))
        for turn, count in self.knobs:
            text = size(count) if self.counted == "total_bytes" else t("room for {count} tokens", count=count)
            console.print("  → " + t("{title}: {text}", title=turn, text=text))
        if fits is False and not self.knobs:
            console.print("  " + t("No setting makes it fit: use a smaller model or a bigger card."))
        if self.unmeasured:
            text = t("Computed only, not measured on a real card: {parts}.", parts=tuple(self.unmeasured))
            console.print(text, style="dim")
        if self.note:
            console.print(current().text(self.note), style="dim")


def on_common_cards(estimate: Estimate) -> Table:
    """Return on which common cards it fits, for who has none here."""
    table = table_of(">" + t("card"), ">" + t("usable"), "<" + t("fits"), gap=3)
    for total_bytes in (gib << 30 for gib in _COMMON_GIB):
        usable = Usable(round(_USABLE * total_bytes), NOTHING_SAID)
        fits, _ = verdict_on(estimate, usable)
        word, colour = {True: (t("yes"), "green"), None: (t("perhaps"), "yellow"), False: (t("no"), "red")}[fits]
        table.add_row(size(total_bytes), size(usable.bytes), Text(word, colour))
    return table


def verdict_on(estimate: Estimate, room: Usable | None) -> tuple[bool | None, Message]:
    """Return whether an estimate fits; None: there is no card, or the room lies between the least and the most."""
    if room is None:
        return None, say("No GPU answers here. On common cards (--usable 14.5GiB takes another size):")
    least, most, how = estimate.total_bytes, estimate.max_bytes, room.how
    if least > room.bytes:
        excess = least - room.bytes
        return False, say("It does not fit: {excess_bytes} too much ({how}).", excess_bytes=excess, how=how)
    if most is None:
        return None, say("It may not fit: it takes {min_bytes} or more ({how}).", min_bytes=least, how=how)
    if most > room.bytes:
        between = {"min_bytes": least, "max_bytes": most}
        return None, say("It may not fit: it takes between {min_bytes} and {max_bytes} ({how}).", **between, how=how)
    return True, say("It fits, with {spare_bytes} to spare ({how}).", spare_bytes=room.bytes - most, how=how)
