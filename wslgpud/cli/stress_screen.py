"""Stress runs on a terminal: progress, verdict, tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich import progress as bars
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from wslgpud.cli.chart import chart
from wslgpud.cli.console import Console
from wslgpud.model import StressResult
from wslgpud.palette import TERMINAL_LINES, TERMINAL_VERDICTS
from wslgpud.units import duration

#: how a phase is written for people, see ``wslgpud.stress.worker``
PHASES = {
    "begin": "waking the GPU", "ladder": "sizes", "fragmentation": "fragments",
    "fill": "filling", "bandwidth": "speed of each chunk", "patterns": "data",
    "beyond": "past the limit", "soak": "going on for a while", "release": "giving back",
}  # fmt: skip

if TYPE_CHECKING:
    from typing_extensions import Self

WORDS = {
    "passed": "passed", "findings": "FOUND SOMETHING", "left": "given up for another program",
    "skipped": "not run", "failed": "failed",
}  # fmt: skip
LAYERS = (
    ("spec", "the card is sold with"), ("total", "the driver manages"),
    ("reserved", "of it the driver keeps"), ("visible", "visible to CUDA"), ("foreign", "in use by others"),
    ("context", "taken by a CUDA program as such"),
    ("free", "free for its tensors"), ("allocated", "taken by the test"), ("verified", "verified"),
    ("usable", "usable at full speed"), ("spilled", "spilled into shared memory"),
    ("spill_start", "taken before the first that spilled"),
)  # fmt: skip


class Progress:
    """A bar while the run goes on; nothing when ``silent`` or without a terminal."""

    def __init__(self, *, silent: bool) -> None:
        """Show nothing yet."""
        columns = (
            bars.SpinnerColumn(), bars.TextColumn("{task.description}", markup=False), bars.BarColumn(),
            bars.TextColumn("{task.fields[note]}"), bars.TimeElapsedColumn(),
        )  # fmt: skip
        self._bars = bars.Progress(*columns, console=Console(stderr=True), transient=True, disable=silent)
        self._task = self._bars.add_task("", total=None, note="")

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        self._bars.stop()

    def tell(self, text: str) -> None:
        """Show what is waited for."""
        self._bars.update(self._task, description=text)

    def line(self, line: Mapping[str, Any]) -> None:
        """Take a line of the worker."""
        if line["event"] == "beat":
            verified, phase = line.get("verified", 0), line.get("phase", "")
            done, left = line.get("done_ratio"), line.get("left_seconds")
            checked = f"{verified / 1e9:.0f} GB checked" if verified else ""
            left_of_it = "" if left is None else f"~{duration(left)} left"
            self._bars.update(
                self._task, description=PHASES.get(phase, phase),
                note=" · ".join(filter(None, [checked, left_of_it])),
                total=None if done is None else 1.0, completed=done or 0.0,
            )  # fmt: skip
        elif line["event"] == "bad":
            wrong = f"wrong words in chunk {line['chunk']} ({line['pattern']})"
            self._bars.console.print(wrong, style="red")


def _when(run: StressResult) -> str:
    return datetime.fromtimestamp(run.wall).astimezone().strftime("%Y-%m-%d %H:%M")


def _gib(value: float | None) -> str:
    return "" if value is None else f"{value / 2**30:.2f} GiB"


def _gbs(value: float | None) -> str:
    return "" if value is None else f"{value / 1e9:.0f}"


def print_run(run: StressResult, *, rows: bool = False, console: Console | None = None) -> None:
    """Print the verdict, the layers of memory and the speeds; with ``rows`` what they come from."""
    out = console or Console()
    said = "\n".join(filter(None, [run.reason, *(finding.text for finding in run.findings)]))
    title = Text(f"gpu{run.gpu} {run.name}: {WORDS[run.verdict]}")
    out.print(
        Panel(
            said or "every byte kept what was written",
            title=title,
            border_style=TERMINAL_VERDICTS[run.verdict],
        )
    )
    values = run.values
    layers = _table("", "", "")
    for name, text in LAYERS:
        if f"{name}_bytes" in values:
            size, spec = values[f"{name}_bytes"], values.get("spec_bytes")
            layers.add_row(text, _gib(size), f"{size / spec:.1%}" if spec else "")
    if layers.row_count:
        out.print(layers)
    if "write_median" in values:
        out.print(f" GB/s, median of all chunks (slowest): {_speeds(values)}")
    if course := _course(values):
        out.print(f" {course}")
    if rows:
        _print_rows(run, out)


def _speeds(values: Mapping[str, float]) -> str:
    said = []
    for kind in ("write", "change", "read"):
        middle, least, peak = (values.get(n) for n in (f"{kind}_median", f"{kind}_min", "peak_bandwidth"))
        share = f", {middle / peak:.0%} of peak" if middle and peak else ""
        said.append(f"{kind} {_gbs(middle)}" + (f" ({_gbs(least)}){share}" if least else ""))
    return "; ".join(said)


def _course(values: Mapping[str, float]) -> str:
    """Say in one line what the card did meanwhile."""
    shown = (
        ("temperature_max_celsius", 1, "up to {:.0f} °C"), ("power_max_watts", 1, "{:.0f} W"),
        ("memory_clock_hertz", 1e6, "memory at {:.0f} MHz"),
        ("slowed_ratio", 0.01, "slowed down for {:.0f} %"),
        ("ecc_corrected", 1, "ECC corrected {:.0f} errors"),
        ("ecc_uncorrected", 1, "could not correct {:.0f}"),
    )  # fmt: skip
    return ", ".join(text.format(values[name] / unit) for name, unit, text in shown if name in values)


def _table(*headings: str) -> Table:
    table = Table(box=None, header_style="dim", show_header=any(headings), padding=(0, 2, 0, 1))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 else "right", no_wrap=True)
    return table


def _print_rows(run: StressResult, out: Console) -> None:
    ladder = _table("single tensor", "allocated in", "written at", "")
    for rung in run.detail.get("ladder", ()):
        seconds = rung.get("allocate_seconds")
        rate = rung["actual"] / rung["write_seconds"] / 1e9 if rung.get("write_seconds") else None
        ladder.add_row(
            _gib(rung["target"]), "" if seconds is None else f"{seconds * 1000:.1f} ms",
            "" if rate is None else f"{rate:.0f} GB/s", rung["outcome"],
        )  # fmt: skip
    patterns = _table("pattern", "seconds", "checked", "wrong words")
    for row in run.detail.get("patterns", ()):
        patterns.add_row(
            row["name"], f"{row['seconds']:.2f}", f"{row['verified'] / 1e9:.0f} GB", str(row["bad_words"])
        )
    errors = _table("chunk", "pattern", "class", "words", "first at", "bits")
    shown = set()
    for row in run.detail.get("errors", ()):
        if "words" in row and (row["samples"] or row["chunk"] not in shown):
            shown.add(row["chunk"])
            first = (row["samples"] or [{}])[0]
            errors.add_row(
                str(row["chunk"]), row["pattern"], row["class"],
                f"{row['words']:,}" if row["words"] else "gone",
                f"0x{8 * first['word']:08x}" if first else "", _bits(row["bits"]),
            )  # fmt: skip
    slow = _table("chunk", "class", "write", "change", "read GB/s")
    for row in run.detail.get("chunks", ()):
        if row["class"] != "dedicated":
            rates = [_gbs(row["bytes"] * n / row[k]) for k, n in (("write", 1), ("change", 2), ("read", 1))]
            slow.add_row(str(row["index"]), row["class"], *rates)
    for table in (ladder, patterns, errors, slow):
        if table.row_count:
            out.print(table)
    phases = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in run.detail.get("phases", {}).items())
    key = ", ".join(f"{name} {value}" for name, value in run.key.items() if value)
    out.print(f" {phases}\n {key}", style="dim")


#: heading, unit and width of what one run shows in its line
COLUMNS = (
    ("id", "", 4), ("when", "", 16), ("gpu", "", 3), ("verdict", "", 8), ("usable", "GiB", 6),
    ("verified", "", 8), ("write", "GB/s", 5), ("change", "GB/s", 6), ("read", "GB/s", 5), ("driver", "", 10),
)  # fmt: skip


def _bits(counts: Mapping[str, int]) -> str:
    """Name the bits that were wrong, when they are few."""
    return ", ".join(map(str, counts)) if len(counts) <= 4 else f"{len(counts)} of 64"


def print_history(runs: Sequence[tuple[int, StressResult]], console: Console | None = None) -> None:
    """Print one line a run, and below it what is to be said of it."""
    out = console or Console()
    if not runs:
        out.print("no stress run yet; 'wslgpud stress' does one")
        return
    for headings in ([name for name, _, _ in COLUMNS], [unit for _, unit, _ in COLUMNS]):
        out.print(_line(headings), style="dim")
    for number, run in runs:
        v = run.values
        free, verified = v.get("free_bytes"), v.get("verified_bytes")
        usable = v.get("usable_bytes")
        cells = [
            str(number), _when(run), str(run.gpu), run.verdict,
            "" if usable is None else f"{usable / 2**30:.2f}",
            f"{verified / free:.2%}" if free and verified is not None else "",
            *(_gbs(v.get(f"{kind}_median")) for kind in ("write", "change", "read")),
            run.key.get("driver", ""),
        ]  # fmt: skip
        out.print(_line(cells, style=TERMINAL_VERDICTS[run.verdict]))
        for said in filter(None, [run.reason, *(finding.text for finding in run.findings)]):
            out.print(Padding(said, (0, 0, 0, 6)), style="dim")


def print_curves(runs: Sequence[StressResult], console: Console | None = None) -> None:
    """Draw usable VRAM and bandwidth of the complete runs over time, for each card."""
    from wslgpud.curves import Curve  # noqa: PLC0415 - with them comes the database
    from wslgpud.store import SeriesRef  # noqa: PLC0415

    out = console or Console()
    done = [run for run in runs if run.complete]
    drawn: tuple[tuple[str, Sequence[str], str], ...] = (
        ("usable VRAM", ("usable_bytes",), "bytes"),
        ("GB/s", ("write_median", "change_median", "read_median"), ""),
    )
    for uuid, (title, names, unit) in ((u, d) for u in dict.fromkeys(r.uuid for r in done) for d in drawn):
        mine = [run for run in done if run.uuid == uuid]
        known = ((name, [(r.wall, r.values[name]) for r in mine if name in r.values]) for name in names)
        curves = {
            name: Curve(SeriesRef(name), unit, rate=False, points=[(w, v, v, v) for w, v in points])
            for name, points in known
            if points
        }
        if len(mine) < 2 or not curves:
            continue
        gpu, words = f"gpu{mine[0].gpu}", [name.partition("_")[0] for name in curves]
        head = Text(f" {gpu} {mine[0].name}: {title}  ")
        for word, colour in zip(words, TERMINAL_LINES, strict=False):
            head.append(f"━ {word}  " * (len(words) > 1), colour)
        out.print(head)
        write = _gib if unit else _gbs
        start, end = mine[0].wall, mine[-1].wall
        step = max(1.0, (end - start) / (len(mine) - 1))
        for line in chart(
            list(curves.values()), start, end + step, step, write, width=out.picture_width, height=8
        ):
            out.print(line)


def _line(cells: Sequence[str], style: str = "") -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for cell, (name, _, width) in zip(cells, COLUMNS, strict=True):
        left = name in ("when", "verdict", "driver")
        text = cell.ljust(width) if left else cell.rjust(width)
        line.append(text + " ", style if name == "verdict" else "")
    return line


def print_differences(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], console: Console | None = None
) -> None:
    """Print figures side by side, with the change from the first column to the last."""
    out = console or Console()
    if len(columns) < 2:
        out.print("nothing to compare: all runs are of one driver and torch")
    # "gpu0 576.88 torch 2.13.0" is wide; the same words on two lines are not.
    table = _table("", *(name.replace(" torch", "\ntorch") for name in columns), "change")
    for row in rows:
        shown = [_gib(x) if row["unit"] == "bytes" else f"{_gbs(x)} GB/s" if x else "" for x in row["values"]]
        table.add_row(row["name"], *shown, _change(row))
    out.print(table)


def _change(row: Mapping[str, Any]) -> str:
    if row["change"] is None:
        return ""
    if row["unit"] == "bytes":
        return f"{(row['values'][-1] - row['values'][0]) / 2**20:+.0f} MiB"
    return f"{row['change']:+.1%}"
