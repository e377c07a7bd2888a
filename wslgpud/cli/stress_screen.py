"""Stress runs on a terminal: progress, verdict, tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich import progress as bars
from rich.cells import cell_len
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from wslgpud.cli.chart import chart
from wslgpud.cli.console import Console
from wslgpud.model import StressResult
from wslgpud.palette import TERMINAL_LINES, TERMINAL_VERDICTS
from wslgpud.running.headline import phase
from wslgpud.stress.history import VERDICTS, named
from wslgpud.words import Message, Said, current, say, says, t, template

if TYPE_CHECKING:
    from typing_extensions import Self

LAYERS = (
    ("spec", template("the card is sold with")), ("total", template("the driver manages")),
    ("reserved", template("of it the driver keeps")), ("visible", template("visible to CUDA")),
    ("foreign", template("in use by others")), ("context", template("taken by any CUDA program")),
    ("free", template("free for its tensors")), ("allocated", template("taken by the test")),
    ("verified", template("verified")), ("usable", template("usable at full speed")),
    ("spilled", template("spilled into shared memory")),
    ("spill_start", template("taken before the first that spilled")),
)  # fmt: skip
MODES = {
    "quick": template("quick run"), "nightly": template("nightly run"), "full": template("full run"),
}  # fmt: skip
SPEEDS = (("write", template("write"), 1), ("change", template("change"), 2), ("read", template("read"), 1))
#: words in the rows of a run: patterns, what became of a tensor, where a chunk lies, kinds of errors
ROWS = (
    template("solid"), template("checkerboard"), template("walking"), template("address"), template("random"),
    template("move"), template("modulo"), template("retention"), template("soak"),
    template("ok"), template("too large"), template("refused"),
    template("dedicated"), template("degraded"), template("spilled"), template("contended"),
    template("cell"), template("stuck"), template("inversion"), template("constant"), template("unexamined"),
)  # fmt: skip


def _word(text: str) -> str:
    """Return a word of a table in the reader's language, as it is where it is somebody else's."""
    return current().template(text)


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
            verified, now = line.get("verified", 0), phase(line.get("phase", ""))
            done, left = line.get("done_ratio"), line.get("left_seconds")
            checked = t("{checked_bytes} checked", checked_bytes=verified) if verified else ""
            left_of_it = "" if left is None else t("about {left_seconds} left", left_seconds=left)
            self._bars.update(
                self._task, description=current().text(now),
                note=" · ".join(filter(None, [checked, left_of_it])),
                total=None if done is None else 1.0, completed=done or 0.0,
            )  # fmt: skip
        elif line["event"] == "bad":
            pattern = _word(line["pattern"])
            wrong = t("wrong words in chunk {chunk} ({pattern})", chunk=line["chunk"], pattern=pattern)
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
    said = "\n".join(_said(run))
    title = Text(t("{title}: {text}", title=f"GPU {run.gpu} {run.name}", text=_word(VERDICTS[run.verdict])))
    colour = TERMINAL_VERDICTS[run.verdict]
    out.print(Panel(said or t("every byte kept what was written"), title=title, border_style=colour))
    values = run.values
    layers = _table("", "", "")
    for name, text in LAYERS:
        if f"{name}_bytes" in values:
            size, spec = values[f"{name}_bytes"], values.get("spec_bytes")
            layers.add_row(_word(text), _gib(size), f"{size / spec:.1%}" if spec else "")
    speeds = _table("GB/s", t("median of all chunks"), t("slowest"), t("of peak"))
    for kind, text, _ in SPEEDS:
        middle, least, peak = (values.get(n) for n in (f"{kind}_median", f"{kind}_min", "peak_bandwidth"))
        if middle is not None:
            speeds.add_row(_word(text), _gbs(middle), _gbs(least), f"{middle / peak:.0%}" if peak else "")
    for table in (layers, speeds):
        if table.row_count:
            out.print(table)
    if course := current().listed(_course(values)):
        out.print(f" {course}")
    if rows:
        _print_rows(run, out)


def _said(run: StressResult) -> list[str]:
    return [current().text(said) for said in (run.reason, *(f.text for f in run.findings)) if said]


def _course(values: Mapping[str, float]) -> Iterator[Said]:
    """Say what the card did meanwhile."""
    if (celsius := values.get("temperature_max_celsius")) is not None:
        yield say("up to {celsius} °C", celsius=round(celsius))
    if (watts := values.get("power_max_watts")) is not None:
        yield f"{watts:.0f} W"
    if (hertz := values.get("memory_clock_hertz")) is not None:
        yield say("memory at {mhz} MHz", mhz=round(hertz / 1e6))
    if (slowed := values.get("slowed_ratio")) is not None:
        yield say("clocks held down for {slowed_ratio} of the time", slowed_ratio=slowed)
    if (count := values.get("ecc_corrected")) is not None:
        yield says("ECC corrected {count} error", "ECC corrected {count} errors", count=int(count))
    if (count := values.get("ecc_uncorrected")) is not None:
        yield says(
            "{count} error could not be corrected", "{count} errors could not be corrected", count=int(count)
        )


def _table(*headings: str) -> Table:
    table = Table(box=None, header_style="dim", show_header=any(headings), padding=(0, 2, 0, 1))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 else "right", no_wrap=True)
    return table


def _print_rows(run: StressResult, out: Console) -> None:
    ladder = _table(t("single tensor"), t("allocated in"), t("written at"), "")
    for rung in run.detail.get("ladder", ()):
        seconds = rung.get("allocate_seconds")
        rate = rung["actual"] / rung["write_seconds"] / 1e9 if rung.get("write_seconds") else None
        ladder.add_row(
            _gib(rung["target"]), "" if seconds is None else f"{seconds * 1000:.1f} ms",
            "" if rate is None else f"{rate:.0f} GB/s", _word(rung["outcome"]),
        )  # fmt: skip
    patterns = _table(t("pattern"), t("seconds"), t("checked"), t("wrong words"))
    for row in run.detail.get("patterns", ()):
        patterns.add_row(
            _word(row["name"]), f"{row['seconds']:.2f}", _gib(row["verified"]), str(row["bad_words"])
        )
    errors = _table(t("chunk"), t("pattern"), t("class"), t("words"), t("first at"), t("bits"))
    shown = set()
    for row in run.detail.get("errors", ()):
        if "words" in row and (row["samples"] or row["chunk"] not in shown):
            shown.add(row["chunk"])
            first = (row["samples"] or [{}])[0]
            errors.add_row(
                str(row["chunk"]), _word(row["pattern"]), _word(row["class"]),
                f"{row['words']:,}" if row["words"] else t("gone"),
                f"0x{8 * first['word']:08x}" if first else "", _bits(row["bits"]),
            )  # fmt: skip
    slow = _table(t("chunk"), t("class"), *(_word(text) for _, text, _ in SPEEDS), "GB/s")
    for row in run.detail.get("chunks", ()):
        if row["class"] != "dedicated":
            rates = [_gbs(row["bytes"] * moved / row[kind]) for kind, _, moved in SPEEDS]
            slow.add_row(str(row["index"]), _word(row["class"]), *rates)
    for table in (ladder, patterns, errors, slow):
        if table.row_count:
            out.print(table)
    phases = (
        say("{phase} {seconds} s", phase=phase(name), seconds=f"{seconds:.2f}")
        for name, seconds in run.detail.get("phases", {}).items()
    )
    for line in (phases, _made_with(run.key)):
        out.print(f" {current().listed(line)}", style="dim")


def _made_with(key: Mapping[str, str]) -> Iterator[Said]:
    for name, value in key.items():
        if name == "mode" and value in MODES:
            yield Message(MODES[value])
        elif name == "wsl":
            yield say("under WSL") if value == "yes" else say("not under WSL")
        elif name == "reserve_bytes" and value.isdecimal():
            yield say("{reserve_bytes} left free on purpose", reserve_bytes=int(value))
        elif name == "engine":
            yield say("test version {version}", version=value)
        elif value:
            yield say("{name} {version}", name=named(name), version=value)


#: heading, unit and width of what one run shows in its line
COLUMNS = (
    (template("id"), "", 4), (template("when"), "", 16), ("GPU", "", 3), (template("verdict"), "", 8),
    (template("usable"), "GiB", 6), (template("verified"), "", 8), (template("write"), "GB/s", 5),
    (template("change"), "GB/s", 6), (template("read"), "GB/s", 5), (template("driver"), "", 10),
)  # fmt: skip


def _bits(counts: Mapping[str, int]) -> str:
    """Name the bits that were wrong, when they are few."""
    return current().listed(map(str, counts)) if len(counts) <= 4 else t("{count} of 64", count=len(counts))


def print_history(runs: Sequence[tuple[int, StressResult]], console: Console | None = None) -> None:
    """Print one line a run, and below it what is to be said of it."""
    out = console or Console()
    if not runs:
        out.print(t("no stress run yet; wslgpud stress does one"))
        return
    for headings in ([_word(name) for name, _, _ in COLUMNS], [unit for _, unit, _ in COLUMNS]):
        out.print(_line(headings), style="dim")
    for number, run in runs:
        v = run.values
        free, verified = v.get("free_bytes"), v.get("verified_bytes")
        usable = v.get("usable_bytes")
        cells = [
            str(number), _when(run), str(run.gpu), _word(VERDICTS[run.verdict]),
            "" if usable is None else f"{usable / 2**30:.2f}",
            f"{verified / free:.2%}" if free and verified is not None else "",
            *(_gbs(v.get(f"{kind}_median")) for kind in ("write", "change", "read")),
            run.key.get("driver", ""),
        ]  # fmt: skip
        out.print(_line(cells, style=TERMINAL_VERDICTS[run.verdict]))
        for said in _said(run):
            out.print(Padding(said, (0, 0, 0, 6)), style="dim")


def print_curves(runs: Sequence[StressResult], console: Console | None = None) -> None:
    """Draw usable VRAM and bandwidth of the complete runs over time, for each card."""
    from wslgpud.curves import Curve  # noqa: PLC0415 - with them comes the database
    from wslgpud.store import SeriesRef  # noqa: PLC0415

    out = console or Console()
    done = [run for run in runs if run.complete]
    drawn: tuple[tuple[str, Sequence[str], str], ...] = (
        (t("usable VRAM"), ("usable_bytes",), "bytes"),
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
        words = [_word(name.partition("_")[0]) for name in curves]
        head = Text(" " + t("{title}: {text}", title=f"GPU {mine[0].gpu} {mine[0].name}", text=title) + "  ")
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
        pad = " " * (width - cell_len(cell))  # a Chinese character is two cells wide
        text = cell + pad if name in ("when", "verdict", "driver") else pad + cell
        line.append(text + " ", style if name == "verdict" else "")
    return line


def print_differences(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], console: Console | None = None
) -> None:
    """Print figures side by side, with the change from the first column to the last."""
    out = console or Console()
    if not columns:
        out.print(t("nothing to compare: no stress run is complete yet; wslgpud stress does one"))
        return
    if len(columns) < 2:
        out.print(t("nothing to compare: all runs are of one driver and torch"))
    # "gpu0 576.88 torch 2.13.0" is wide; the same words on two lines are not.
    table = _table("", *(name.replace(" torch", "\ntorch") for name in columns), t("difference"))
    for row in rows:
        shown = [_gib(x) if row["unit"] == "bytes" else f"{_gbs(x)} GB/s" if x else "" for x in row["values"]]
        table.add_row(_word(row["name"]), *shown, _change(row))
    out.print(table)


def _change(row: Mapping[str, Any]) -> str:
    if row["change"] is None:
        return ""
    if row["unit"] == "bytes":
        return f"{(row['values'][-1] - row['values'][0]) / 2**20:+.0f} MiB"
    return f"{row['change']:+.1%}"
