"""``wslgpud stress``: test the GPU's memory now, and show earlier runs.

The store, which takes as long to import as everything else, is imported when needed: in a run, while torch loads.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import click

from wslgpud.cli import common, completion
from wslgpud.cli.commands import CommandGroup
from wslgpud.cli.common import Fault, argument, database_of, flag, loaded, option, own_database, picture, warn
from wslgpud.cli.stress_screen import Progress, print_curves, print_differences, print_history, print_run
from wslgpud.host import Host
from wslgpud.model import StressResult
from wslgpud.series.plots import plot_stress
from wslgpud.stress.by_hand import ByHand, keep
from wslgpud.stress.comparison import by_key, differences
from wslgpud.words import current, t
from wslgpud.words.moments import moment, span

#: Users who start a run have freed the GPU, and torch takes about this long to load; a nightly run waits longer
#: (stress.settle_seconds).
SETTLE_SECONDS = 3.0
#: exit status for each verdict
STATUS = {"passed": 0, "findings": 1, "skipped": 3, "left": 3, "failed": 4}


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
    with Progress(silent=as_json) as progress:
        progress.tell(t("waiting for the GPU to settle"))
        result = by_hand.run(gpu, "quick" if quick else "full" if full else "nightly", progress.line)
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
    from wslgpud.stress import unit

    settings, folder = loaded(config).config, common.state_folder(state)
    unit.answer(ByHand(Host(), settings, folder, own_database(config, state)).run)


def _runs(database: str) -> list[tuple[int, StressResult]]:
    from wslgpud.store import Reader

    with Reader(database) as reader:
        return reader.stress_runs()


def _document(run: StressResult) -> dict[str, Any]:
    from wslgpud.store.records import stress_to_json

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
    runs = [(n, run) for n, run in _runs(database_of(config, state)) if start <= run.wall <= end][-limit:]
    if (file := picture(plot)) is not None:
        plot_stress([run for _, run in runs], file)
        click.echo(t("drawn: {path}", path=str(file)), err=True)
    if as_json:
        documents = [{"id": number, **_document(run)} for number, run in runs]
        for document in documents:
            del document["detail"]
        common.print_json(documents, ensure_ascii=False)
        return
    if plot is not None and file is None:
        print_curves([run for _, run in runs])
    print_history(runs)


@app.command()
def show(
    number: Annotated[int, argument("ID", "number of the run, see history", completion.stress_run)],
    config: common.Config = None,
    state: common.State = None,
    as_json: common.Json = False,
) -> None:
    """Show one run with all its rows.

    Examples:
        wslgpud stress show 12
    """
    run = _one(_runs(database_of(config, state)), number)
    if as_json:
        common.print_json({"id": number, **_document(run)}, ensure_ascii=False)
    else:
        print_run(run, rows=True)


def _one(runs: list[tuple[int, StressResult]], number: int) -> StressResult:
    if (run := dict(runs).get(number)) is None:
        raise Fault("there is no stress run {number}; wslgpud stress history lists them", number=number)
    return run


@app.command()
def compare(
    one: Annotated[
        int | None, argument("ID", "number of a run; without any: driver by driver", completion.stress_run)
    ] = None,
    other: Annotated[int | None, argument("ID", "number of another run", completion.stress_run)] = None,
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
    columns = by_key([run for _, run in runs])
    if one is not None and other is not None:
        columns = {str(number): [_one(runs, number)] for number in (one, other)}
    table = differences(columns)
    if as_json:
        common.print_json({"columns": list(columns), "rows": table})
    else:
        print_differences(list(columns), table)
