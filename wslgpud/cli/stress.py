"""``wslgpud stress``: test the GPU's memory now, and show earlier runs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import click
from rich.panel import Panel
from rich.text import Text

from wslgpud.active_runs import phase
from wslgpud.cli import common
from wslgpud.cli.chart import print_curves
from wslgpud.cli.commands import CommandGroup
from wslgpud.cli.common import Fault, argument, database_of, flag, loaded, option, own_database, picture, warn
from wslgpud.cli.console import Console, Shows, bar, pairs, table_of
from wslgpud.colors import TERMINAL_VERDICTS
from wslgpud.host import Host
from wslgpud.model import StressResult
from wslgpud.series.curves import Curve
from wslgpud.series.plots import plot_curves
from wslgpud.store import Reader, SeriesRef
from wslgpud.store.records import stress_to_json
from wslgpud.stress.comparison import VERDICTS, by_key, course, differences, made_with
from wslgpud.stress.separate import ByHand, keep, serve_one
from wslgpud.stress.stress_metrics import BYTES
from wslgpud.words import current, say, t, template
from wslgpud.words.moments import moment, span

#: Users who start a run have freed the GPU, and torch takes about this long to load; a nightly run waits longer
#: (stress.settle_seconds).
SETTLE_SECONDS = 3.0
#: exit status for each verdict
STATUS = {"passed": 0, "findings": 1, "skipped": 3, "left": 3, "failed": 4}
SPEEDS = (("write", template("write"), 1), ("change", template("change"), 2), ("read", template("read"), 1))
#: what is drawn of each run: figure, name, and the unit in which it is drawn
_DRAWN = (
    ("usable_bytes", template("usable VRAM"), "GiB", 2**30),
    *((f"{kind}_median", text, "GB/s", 1e9) for kind, text, _ in SPEEDS),
    ("errors", template("wrong words"), template("wrong words"), 1),
)


def stress(
    context: click.Context,
    gpu: common.Gpu = 0,
    quick: Annotated[bool, flag("--quick", "sizes, speed and addresses only")] = False,
    full: Annotated[bool, flag("--full", "more patterns, a longer pause, a soak")] = False,
    as_json: common.Json = False,
    config: common.Config = None,
    state: common.State = None,
) -> None:
    """Test the GPU's memory now if it is idle: sizes, speed, spill, data.

    Exit status: 0 passed, 1 findings, 3 not run or yielded to another program, 4 failed.

    Examples:
        wslgpud stress --quick
        wslgpud stress history  # the nightly tests, one per line
        wslgpud stress show 12  # one of them with all its figures
    """
    if context.invoked_subcommand:
        return
    if quick and full:
        raise Fault("--quick and --full exclude each other")
    settings, folder, database = loaded(config).config, common.state_folder(state), own_database(config, state)
    by_hand = ByHand(Host(), settings, folder, database, SETTLE_SECONDS)
    with bar(t("waiting for the GPU to settle"), silent=as_json) as shown:
        result = by_hand.run(gpu, "quick" if quick else "full" if full else "nightly", partial(_show_line, shown))
    try:
        if as_json:
            common.print_json(_document(result), ensure_ascii=False)
        else:
            print_run(result)
    finally:  # a reader that closes the pipe must not cost the run
        if why := keep(result, settings, folder, database):
            warn("the run was not saved: {why}", why=why)
    raise SystemExit(STATUS[result.verdict])


app = CommandGroup(function=stress, invoke_without_command=True)


@app.command(hidden=True)
def answer(config: common.Config = None, state: common.State = None) -> None:
    """Do the run that the daemon asks for on standard input, as wslgpud-stress.socket has it started.

    Examples:
        wslgpud stress answer
    """
    settings, folder = loaded(config).config, common.state_folder(state)
    serve_one(ByHand(Host(), settings, folder, own_database(config, state)).run)


def _runs(database: str) -> dict[int, StressResult]:
    with Reader(database) as reader:
        return dict(reader.stress_runs(brief=True))


def _document(run: StressResult) -> dict[str, Any]:
    return stress_to_json(run, current().text)


@app.command()
def history(
    config: common.Config = None,
    state: common.State = None,
    as_json: common.Json = False,
    limit: Annotated[int, option("--limit", "N", "number of runs, newest first", min=1)] = 30,
    since: common.Since = "",
    until: common.Until = "now",
    plot: common.Plot = None,
) -> None:
    """Show the runs so far, one per line.

    Examples:
        wslgpud stress history --since 30d
        wslgpud stress history --plot nights.png  # usable VRAM, bandwidth and errors over the nights
    """
    start, end = span(since, until, time.time()) if since else (0.0, moment(until, time.time()))
    runs = [(n, run) for n, run in _runs(database_of(config, state)).items() if start <= run.wall <= end][-limit:]
    file = picture(plot)
    if file is not None or (plot is not None and not as_json):
        _draw([run for _, run in runs if run.complete], file)
    if as_json:
        documents = [{"id": number, **_document(run)} for number, run in runs]
        for document in documents:
            del document["detail"]
        common.print_json(documents, ensure_ascii=False)
        return
    print_history(runs)


def _draw(runs: Sequence[StressResult], file: Path | None) -> None:
    """Draw complete runs over time, card by card on the terminal, or into a file, where a line marks a new driver."""
    cards: dict[str, list[StressResult]] = {}
    for run in runs:
        cards.setdefault(run.uuid, []).append(run)
    drawn = [(of_card, [*_curves(of_card, named=len(cards) > 1)]) for of_card in cards.values()]
    if not any(curves for _, curves in drawn):
        raise Fault("nothing to draw: no stress run has been completed yet")
    if file is not None:
        drivers = [
            (run.wall, f"{old} → {new}")
            for of_card in cards.values()
            for before, run in pairwise(of_card)
            if (old := before.key.get("driver", "")) != (new := run.key.get("driver", ""))
        ]
        lines = [(curve.ref.metric, curve.unit, curve.points) for _, curves in drawn for curve in curves]
        plot_curves(lines, math.inf, file, drivers)
        click.echo(t("drawn: {path}", path=str(file)), err=True)
        return
    for of_card, curves in drawn:
        start, end = of_card[0].wall, of_card[-1].wall
        step = max(1.0, (end - start) / max(1, len(of_card) - 1))
        print_curves(curves, (start, end + step), step)


def _curves(runs: Sequence[StressResult], *, named: bool) -> Iterator[Curve]:
    """Yield what is drawn of one card's runs; of wrong words nothing while there are none. ``named``: with its name."""
    card = f"gpu{runs[0].gpu} " + f"{runs[0].name} " * named
    for figure, text, unit, scale in _DRAWN:
        points = [(run.wall, *3 * (run.values[figure] / scale,)) for run in runs if figure in run.values]
        if points and (figure != "errors" or any(value for _, value, *_ in points)):
            yield Curve(SeriesRef(f"{card}{_word(text)}"), unit, rate=False, points=points)


@app.command()
def show(
    number: Annotated[int, argument("ID", "number of the run, see history", common.complete_stress_run)],
    config: common.Config = None,
    state: common.State = None,
    as_json: common.Json = False,
) -> None:
    """Show one run with all its rows.

    Examples:
        wslgpud stress show 12
    """
    with Reader(database_of(config, state)) as reader:
        run = _known(reader.stress_run(number), number)
    if as_json:
        common.print_json({"id": number, **_document(run)}, ensure_ascii=False)
    else:
        print_run(run, rows=True)


def _known(run: StressResult | None, number: int) -> StressResult:
    if run is None:
        raise Fault("there is no stress run {number}; wslgpud stress history lists them", number=number)
    return run


@app.command()
def compare(
    one: Annotated[
        int | None, argument("ID", "number of a run; without any: driver by driver", common.complete_stress_run)
    ] = None,
    other: Annotated[int | None, argument("ID", "number of another run", common.complete_stress_run)] = None,
    config: common.Config = None,
    state: common.State = None,
    as_json: common.Json = False,
) -> None:
    """Compare two runs, or the medians of each driver and torch.

    Examples:
        wslgpud stress compare 11 12
        wslgpud stress compare  # driver by driver
    """
    runs = _runs(database_of(config, state))
    if one is not None and other is None:
        raise Fault("two runs are needed, or none for driver by driver")
    columns = by_key([*runs.values()])
    if one is not None and other is not None:
        columns = {str(number): [_known(runs.get(number), number)] for number in (one, other)}
    table = differences(columns)
    if as_json:
        common.print_json({"columns": list(columns), "rows": table})
    else:
        print_differences(list(columns), table)


def _word(text: str) -> str:
    """Return a word of a table in the reader's language; foreign text unchanged."""
    return current().template(text)


def _show_line(shown: Shows, line: Mapping[str, Any]) -> None:
    """Show a line of the worker."""
    if line["event"] == "beat":
        verified, done = line.get("verified", 0), line.get("done_ratio")
        notes = [t("{checked_bytes} checked", checked_bytes=verified)] * bool(verified)
        doing = " · ".join([current().text(phase(line.get("phase", ""))), *notes])
        shown(done or 0.0, None if done is None else 1.0, doing)
    elif line["event"] == "bad":
        pattern = _word(line["pattern"])
        print(t("wrong words in chunk {chunk} ({pattern})", chunk=line["chunk"], pattern=pattern), file=sys.stderr)


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
    if rows:
        out.print(table_of("<" + headings[0], *(f">{text}" for text in headings[1:]), rows=rows, first=1))


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
    if refused := run.detail.get("refused"):
        out.print(f" {t('more memory was refused: {why}', why=refused)}")
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
    speeds = (f">{_word(text)}\nGB/s" for _, text, _ in SPEEDS)
    table = table_of(*headings, *speeds, "<" + t("driver"), rows=(_row(number, run) for number, run in runs), gap=1)
    out.print(table, pairs([(str(number), remark) for number, run in runs for remark in _remarks(run)]))


def _row(number: int, run: StressResult) -> Iterator[str | Text]:
    free, verified, usable = (run.values.get(f"{name}_bytes") for name in ("free", "verified", "usable"))
    yield from (str(number), f"{datetime.fromtimestamp(run.wall).astimezone():%Y-%m-%d %H:%M}", str(run.gpu))
    yield Text(_word(VERDICTS[run.verdict]), TERMINAL_VERDICTS[run.verdict])
    yield "" if usable is None else f"{usable / 2**30:.2f}"
    yield f"{verified / free:.2%}" if free and verified is not None else ""
    yield from (_gbs(run.values.get(f"{kind}_median")) for kind, _, _ in SPEEDS)
    yield run.key.get("driver", "")


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
