"""Stress runs on a terminal: progress, verdict, tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich import progress as bars
from rich.panel import Panel
from rich.text import Text

from wslgpud.active_runs.notes import phase
from wslgpud.cli.chart import chart
from wslgpud.cli.console import Console, pairs, table_of
from wslgpud.colors import TERMINAL_LINES, TERMINAL_VERDICTS
from wslgpud.model import StressResult
from wslgpud.stress.comparison import VERDICTS, course, made_with
from wslgpud.stress.stress_metrics import BYTES
from wslgpud.words import current, say, t, template

SPEEDS = (("write", template("write"), 1), ("change", template("change"), 2), ("read", template("read"), 1))


def _word(text: str) -> str:
    """Return a word of a table in the reader's language; foreign text unchanged."""
    return current().template(text)


class Progress(bars.Progress):
    """A progress bar during the run; nothing when ``silent`` or without a terminal."""

    def __init__(self, *, silent: bool) -> None:
        columns = (
            bars.SpinnerColumn(),
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(),
            bars.TextColumn("{task.fields[note]}"),
            bars.TimeElapsedColumn(),
        )
        super().__init__(*columns, console=Console(stderr=True), transient=True, disable=silent)
        self._task = self.add_task("", total=None, note="")

    def tell(self, text: str) -> None:
        """Show what the run is waiting for."""
        self.update(self._task, description=text)

    def line(self, line: Mapping[str, Any]) -> None:
        """Take a line of the worker."""
        if line["event"] == "beat":
            verified, done, left = line.get("verified", 0), line.get("done_ratio"), line.get("left_seconds")
            notes = [t("{checked_bytes} checked", checked_bytes=verified)] * bool(verified)
            notes += [] if left is None else [t("about {left_seconds} left", left_seconds=left)]
            self.update(
                self._task,
                description=current().text(phase(line.get("phase", ""))),
                note=" · ".join(notes),
                total=None if done is None else 1.0,
                completed=done or 0.0,
            )
        elif line["event"] == "bad":
            pattern = _word(line["pattern"])
            wrong = t("wrong words in chunk {chunk} ({pattern})", chunk=line["chunk"], pattern=pattern)
            self.console.print(wrong, style="red")


def _gib(value: float | None) -> str:
    return "" if value is None else f"{value / 2**30:.2f} GiB"


def _gbs(value: float | None) -> str:
    return "" if value is None else f"{value / 1e9:.0f}"


def print_run(run: StressResult, *, rows: bool = False) -> None:
    """Print the verdict, the classes of memory and the speeds; with ``rows`` the underlying data."""
    out, values, colour = Console(), run.values, TERMINAL_VERDICTS[run.verdict]
    title = Text(t("{title}: {text}", title=f"GPU {run.gpu} {run.name}", text=_word(VERDICTS[run.verdict])))
    body = "\n".join(_remarks(run)) or t("every byte was read back as written")
    out.print(Panel(body, title=title, border_style=colour))
    spec, peak = values.get("spec_bytes"), values.get("peak_bandwidth")
    sizes = [(name, values[name]) for name in BYTES if name in values]
    layers = [
        (current().label("figure", name), _gib(size), f"{size / spec:.1%}" if spec else "") for name, size in sizes
    ]
    medians = ((kind, text, values[f"{kind}_median"]) for kind, text, _ in SPEEDS if f"{kind}_median" in values)
    speeds = [
        (_word(text), _gbs(middle), _gbs(values.get(f"{kind}_min")), f"{middle / peak:.0%}" if peak else "")
        for kind, text, middle in medians
    ]
    _print_table(out, ("", "", ""), layers)
    _print_table(out, ("GB/s", t("median of all chunks"), t("slowest"), t("of peak")), speeds)
    if fared := current().listed(course(values)):
        out.print(f" {fared}")
    if rows:
        _print_rows(run, out)


def _remarks(run: StressResult) -> list[str]:
    return [current().text(remark) for remark in (run.reason, *(f.text for f in run.findings)) if remark]


def _print_table(out: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = table_of("<" + headings[0], *(f">{text}" for text in headings[1:]), first=1)
    for row in rows:
        table.add_row(*row)
    if rows:
        out.print(table)


def _print_rows(run: StressResult, out: Console) -> None:
    ladder, errors, slow, shown = [], [], [], set()
    for rung in run.detail.get("ladder", ()):
        took, wrote = rung.get("allocate_seconds"), rung.get("write_seconds")
        rate = f"{rung['actual'] / wrote / 1e9:.0f} GB/s" if wrote else ""
        allocated = "" if took is None else f"{took * 1000:.1f} ms"
        ladder.append((_gib(rung["target"]), allocated, rate, _word(rung["outcome"])))
    patterns = [
        (_word(row["name"]), f"{row['seconds']:.2f}", _gib(row["verified"]), str(row["bad_words"]))
        for row in run.detail.get("patterns", ())
    ]
    for row in run.detail.get("errors", ()):
        if "words" in row and (row["samples"] or row["chunk"] not in shown):
            shown.add(row["chunk"])
            first = f"0x{8 * row['samples'][0]['word']:08x}" if row["samples"] else ""
            words = f"{row['words']:,}" if row["words"] else t("gone")
            what = _word(row["pattern"]), _word(row["class"])
            errors.append((str(row["chunk"]), *what, words, first, _bits(row["bits"])))
    for row in run.detail.get("chunks", ()):
        if row["class"] != "dedicated":
            rates = [_gbs(row["bytes"] * moved / row[kind]) for kind, _, moved in SPEEDS]
            slow.append((str(row["index"]), _word(row["class"]), *rates))
    _print_table(out, (t("single tensor"), t("allocated in"), t("written at"), ""), ladder)
    _print_table(out, (t("pattern"), t("seconds"), t("checked"), t("wrong words")), patterns)
    _print_table(out, (t("chunk"), t("pattern"), t("class"), t("words"), t("first at"), t("bits")), errors)
    _print_table(out, (t("chunk"), t("class"), *(_word(text) for _, text, _ in SPEEDS), "GB/s"), slow)
    phases = (
        say("{phase} {seconds} s", phase=phase(name), seconds=f"{seconds:.2f}")
        for name, seconds in run.detail.get("phases", {}).items()
    )
    for line in (phases, made_with(run.key)):
        out.print(f" {current().listed(line)}", style="dim")


def _bits(counts: Mapping[str, int]) -> str:
    """Return the wrong bits, if they are few."""
    return current().listed(map(str, counts)) if len(counts) <= 4 else t("{count} of 64", count=len(counts))


def print_history(runs: Sequence[tuple[int, StressResult]]) -> None:
    """Print one line per run, with remarks below it."""
    out = Console()
    if not runs:
        out.print(t("no stress run yet; wslgpud stress does one"))
        return
    headings = (">" + t("id"), "<" + t("when"), ">GPU", "<" + t("verdict"), f">{t('usable')}\nGiB", ">" + t("verified"))
    table = table_of(*headings, *(f">{_word(text)}\nGB/s" for _, text, _ in SPEEDS), "<" + t("driver"), gap=1)
    for number, run in runs:
        v = run.values
        free, verified, usable = (v.get(f"{name}_bytes") for name in ("free", "verified", "usable"))
        table.add_row(
            *(str(number), f"{datetime.fromtimestamp(run.wall).astimezone():%Y-%m-%d %H:%M}", str(run.gpu)),
            Text(_word(VERDICTS[run.verdict]), TERMINAL_VERDICTS[run.verdict]),
            "" if usable is None else f"{usable / 2**30:.2f}",
            f"{verified / free:.2%}" if free and verified is not None else "",
            *(_gbs(v.get(f"{kind}_median")) for kind, _, _ in SPEEDS),
            run.key.get("driver", ""),
        )
    out.print(table, pairs([(str(number), remark) for number, run in runs for remark in _remarks(run)]))


def print_curves(runs: Sequence[StressResult]) -> None:
    """Draw usable VRAM and bandwidth of complete runs over time, for each card."""
    from wslgpud.series.curves import Curve  # imports the store, see ``wslgpud.cli.stress``
    from wslgpud.store import SeriesRef

    out, done = Console(), [run for run in runs if run.complete]
    drawn: tuple[tuple[str, Sequence[str], str], ...] = (
        (t("usable VRAM"), ("usable_bytes",), "bytes"),
        ("GB/s", ("write_median", "change_median", "read_median"), ""),
    )
    for uuid, (title, names, unit) in ((u, d) for u in dict.fromkeys(r.uuid for r in done) for d in drawn):
        card_runs = [run for run in done if run.uuid == uuid]
        known = ((name, [(r.wall, *3 * (r.values[name],)) for r in card_runs if name in r.values]) for name in names)
        curves = [Curve(SeriesRef(name), unit, rate=False, points=points) for name, points in known if points]
        if len(card_runs) < 2 or not curves:
            continue
        words = [_word(curve.ref.metric.partition("_")[0]) for curve in curves]
        head = Text(" " + t("{title}: {text}", title=f"GPU {card_runs[0].gpu} {card_runs[0].name}", text=title) + "  ")
        for word, colour in zip(words, TERMINAL_LINES, strict=False):
            head.append(f"━ {word}  " * (len(words) > 1), colour)
        out.print(head)
        write = _gib if unit else _gbs
        start, end = card_runs[0].wall, card_runs[-1].wall
        step = max(1.0, (end - start) / (len(card_runs) - 1))
        out.print(chart(curves, start, end + step, step, write, width=out.picture_width, height=8))


def print_differences(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print figures side by side, with the change from the first column to the last."""
    out = Console()
    if not columns:
        out.print(t("nothing to compare: no stress run is complete yet; wslgpud stress does one"))
        return
    if len(columns) < 2:
        out.print(t("nothing to compare: all runs are of one driver and torch"))
    # "gpu0 576.88 torch 2.13.0" is wide; on two lines it is not.
    headings = ("", *(name.replace(" torch", "\ntorch") for name in columns), t("difference"))
    shown = []
    for row in rows:
        cells = (_gib(x) if row["unit"] == "bytes" else f"{_gbs(x)} GB/s" if x else "" for x in row["values"])
        shown.append((_word(row["name"]), *cells, _change(row)))
    _print_table(out, headings, shown)


def _change(row: Mapping[str, Any]) -> str:
    if row["change"] is None:
        return ""
    if row["unit"] == "bytes":
        return f"{(row['values'][-1] - row['values'][0]) / 2**20:+.0f} MiB"
    return f"{row['change']:+.1%}"
