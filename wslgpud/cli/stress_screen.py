"""Stress runs on a terminal: progress, verdict, tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich import progress as bars
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from wslgpud.model import StressResult

if TYPE_CHECKING:
    from typing_extensions import Self

COLOURS = {"passed": "green", "findings": "bold red", "left": "yellow", "skipped": "yellow", "failed": "red"}
WORDS = {
    "passed": "passed", "findings": "FOUND SOMETHING", "left": "given up for another program",
    "skipped": "not run", "failed": "failed",
}  # fmt: skip
PHASES = {
    "begin": "waking the GPU", "ladder": "sizes", "fragmentation": "fragments",
    "fill": "filling", "bandwidth": "speed of each chunk", "patterns": "data",
    "beyond": "past the limit", "soak": "going on for a while", "release": "giving back",
}  # fmt: skip
LAYERS = (
    ("total", "the driver manages"), ("reserved", "of it the driver keeps"), ("visible", "visible to CUDA"),
    ("foreign", "in use by others"), ("context", "taken by a CUDA program as such"),
    ("free", "free for its tensors"), ("allocated", "taken by the test"), ("verified", "verified"),
    ("usable", "usable at full speed"), ("spilled", "spilled into shared memory"),
)  # fmt: skip


class Progress:
    """A bar while the run goes on; nothing when ``silent`` or without a terminal."""

    def __init__(self, *, silent: bool) -> None:
        """Show nothing yet."""
        columns = (
            bars.SpinnerColumn(), bars.TextColumn("{task.description}"), bars.BarColumn(),
            bars.TextColumn("{task.fields[note]}"), bars.TimeElapsedColumn(),
        )  # fmt: skip
        self._bars = bars.Progress(*columns, console=Console(stderr=True), transient=True, disable=silent)
        self._task = self._bars.add_task("", total=None, note="")
        self._planned = 0

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        self._bars.stop()

    def say(self, text: str) -> None:
        """Show what is waited for."""
        self._bars.update(self._task, description=text)

    def line(self, line: Mapping[str, Any]) -> None:
        """Take a line of the worker."""
        if line["event"] == "filled":
            self._planned = line["planned"]
        elif line["event"] == "beat":
            checked = f"{line['verified'] / 1e9:.0f} GB checked" if line["verified"] else ""
            done = line["traversed"] if self._planned else 0
            self._bars.update(
                self._task, description=PHASES.get(line["phase"], line["phase"]), note=checked,
                total=self._planned or None, completed=min(done, self._planned),
            )  # fmt: skip
        elif line["event"] == "bad":
            self._bars.console.print(f"[red]wrong words in chunk {line['chunk']} ({line['pattern']})")


def _when(run: StressResult) -> str:
    return datetime.fromtimestamp(run.wall).astimezone().strftime("%Y-%m-%d %H:%M")


def _gib(value: float | None) -> str:
    return "" if value is None else f"{value / 2**30:.2f} GiB"


def _gbs(value: float | None) -> str:
    return "" if value is None else f"{value / 1e9:.0f}"


def print_run(run: StressResult, *, rows: bool = False, console: Console | None = None) -> None:
    """Print the verdict, the layers of memory and the speeds; with ``rows`` what they come from."""
    out = console or Console(highlight=False)
    said = "\n".join(filter(None, [run.reason, *(finding.text for finding in run.findings)]))
    title = f"gpu{run.gpu} {run.name}: {WORDS[run.verdict]}"
    out.print(
        Panel(said or "every byte kept what was written", title=title, border_style=COLOURS[run.verdict])
    )
    values = run.values
    layers = _table("", "")
    for name, text in LAYERS:
        if f"{name}_bytes" in values:
            layers.add_row(text, _gib(values[f"{name}_bytes"]))
    if layers.row_count:
        out.print(layers)
    if "write_median" in values:
        out.print(
            " GB/s, median (least) of all chunks: "
            + ", ".join(
                f"{kind} {_gbs(values.get(f'{kind}_median'))} ({_gbs(values.get(f'{kind}_min'))})"
                for kind in ("write", "change", "read")
            )
        )
    if course := _course(values):
        out.print(f" {course}")
    if rows:
        _print_rows(run, out)


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
    errors = _table("chunk", "pattern", "class", "words", "first word", "expected", "got")
    for row in run.detail.get("errors", ()):
        if "words" in row:
            first = (row["samples"] or [{}])[0]
            errors.add_row(
                str(row["chunk"]), row["pattern"], row["class"], str(row["words"]),
                str(first.get("word", "")), first.get("expected", ""), first.get("got", ""),
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


def print_history(runs: Sequence[tuple[int, StressResult]], console: Console | None = None) -> None:
    """Print one line a run."""
    out = console or Console(highlight=False)
    if not runs:
        out.print("no stress run yet; 'wslgpud stress' does one")
        return
    table = _table(
        "id", "when", "gpu", "verdict", "usable", "verified", "write", "change", "read GB/s", "driver"
    )
    table.add_column("", overflow="fold")
    for number, run in runs:
        v = run.values
        free, verified = v.get("free_bytes"), v.get("verified_bytes")
        share = f"{verified / free:.2%}" if free and verified is not None else ""
        said = run.reason or "; ".join(finding.text for finding in run.findings)
        table.add_row(
            str(number), _when(run), str(run.gpu), f"[{COLOURS[run.verdict]}]{run.verdict}[/]",
            _gib(v.get("usable_bytes")), share, _gbs(v.get("write_median")), _gbs(v.get("change_median")),
            _gbs(v.get("read_median")), run.key.get("driver", ""), said,
        )  # fmt: skip
    out.print(table)


def print_differences(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], console: Console | None = None
) -> None:
    """Print figures side by side, with the change from the first column to the last."""
    out = console or Console(highlight=False)
    if len(columns) < 2:
        out.print("nothing to compare: all runs are of one driver and torch")
    table = _table("", *columns, "change")
    for row in rows:
        shown = [_gib(x) if row["unit"] == "bytes" else f"{_gbs(x)} GB/s" if x else "" for x in row["values"]]
        change = row["change"]
        table.add_row(row["name"], *shown, "" if change is None else f"{change:+.1%}")
    out.print(table)
