"""``wslgpud stress``: test the GPU's memory now, and look at the nights so far."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from wslgpud import config as configuration
from wslgpud.cli.commands import App
from wslgpud.cli.common import (
    ConfigOption,
    Fault,
    GpuOption,
    JsonOption,
    PlotOption,
    SinceOption,
    StateOption,
    UntilOption,
    database_of,
    loaded,
    picture,
    state_folder,
)
from wslgpud.cli.moments import moment, span
from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import GpuSample, StressResult
from wslgpud.stress.look import Recent
from wslgpud.stress.plan import Mode
from wslgpud.words import Said, cause, current, t

app = App(no_args_is_help=False)

#: Whoever asks for a run has let go of the GPU; a nightly run waits longer (stress.settle_seconds).
SETTLE_SECONDS = 5.0
#: exit status for each verdict
STATUS = {"passed": 0, "findings": 1, "skipped": 3, "left": 3, "failed": 4}


@app.callback(invoke_without_command=True)
def stress(
    context: typer.Context,
    gpu: GpuOption = 0,
    quick: Annotated[bool, typer.Option("--quick", help="sizes, speed and addresses only")] = False,
    full: Annotated[bool, typer.Option("--full", help="more patterns, a longer pause, a soak")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    state: StateOption = None,
) -> None:
    """Test the GPU's memory now if it is idle: sizes, speed, spill, data.

    Exit status: 0 passed, 1 something was found, 3 not run or given up for another program, 4 it failed.

    Examples:
        wslgpud stress --quick
        wslgpud stress history  # the nightly tests, one a line
        wslgpud stress show 12  # one of them with all its figures
    """
    if context.invoked_subcommand:
        return
    if quick and full:
        raise Fault("--quick and --full exclude each other")
    mode: Mode = "quick" if quick else "full" if full else "nightly"
    settings, folder = loaded(config).config, state_folder(state)
    database = database_of(config, state)
    result = _run(settings, folder, gpu, mode, silent=as_json, database=database, patience=SETTLE_SECONDS)
    _keep(result, settings, folder, database)
    if as_json:
        from wslgpud.store.stress_rows import to_json  # noqa: PLC0415

        print(json.dumps(to_json(result, current().text), indent=2, ensure_ascii=False))
    else:
        from wslgpud.cli.stress_screen import print_run  # noqa: PLC0415 - rich only when somebody looks

        print_run(result)
    raise typer.Exit(STATUS[result.verdict])


@app.command(hidden=True)
def answer(config: ConfigOption = None, state: StateOption = None) -> None:
    """Do the run that the daemon asks for, as wslgpud-stress.service.

    Examples:
        wslgpud stress answer
    """
    from wslgpud import stress_unit  # noqa: PLC0415 - only here

    settings, folder, database = loaded(config).config, state_folder(state), database_of(config, state)
    patience = settings.stress.settle_seconds
    try:
        stress_unit.answer(
            folder,
            lambda gpu, mode: _run(
                settings, folder, gpu, mode, silent=True, database=database, patience=patience
            ),
        )
    except stress_unit.NoRequestError as error:
        raise Fault(cause(error)) from error


def _run(
    settings: configuration.Config, folder: Path, gpu: int, mode: Mode, *,
    silent: bool, database: str, patience: float,
) -> StressResult:  # fmt: skip
    from wslgpud.cli.stress_screen import Progress  # noqa: PLC0415
    from wslgpud.sources.gpu import GpuSource  # noqa: PLC0415
    from wslgpud.stress.run import Runner  # noqa: PLC0415

    host, recent, done = Host(), Recent(), threading.Event()
    source = GpuSource(host, settings)

    def look() -> Said:
        try:
            sample = source.read()
        except (NoData, SourceError) as error:
            return cause(error)
        recent.note(host.clock.mono(), sample.gpus or (), sample.readings)
        return ""

    def go_on_looking() -> None:
        while not done.wait(0.5):
            look()

    def renew() -> None:
        nonlocal source
        done.set()
        watcher.join(2)
        source.close()  # a new one asks for everything, also what is asked for once a minute
        source = GpuSource(host, settings)
        look()

    watcher = threading.Thread(target=go_on_looking, daemon=True)
    try:
        sample = _gpu(recent, gpu, look())
        folder.mkdir(parents=True, exist_ok=True)
        settle = min(settings.stress.settle_seconds, patience)
        runner = Runner(
            host, replace(settings.stress, settle_seconds=settle), folder, recent, lambda: _earlier(database),
            renew=renew,
        )  # fmt: skip
        signal.signal(signal.SIGINT, lambda *_: runner.stop.set())
        signal.signal(signal.SIGTERM, lambda *_: runner.stop.set())
        watcher.start()
        with Progress(silent=silent) as progress:
            progress.tell(t("waiting for the GPU to settle"))
            runner.stop.wait(settle)
            result = runner.run(sample, mode, progress.line)
    finally:
        done.set()
        if watcher.is_alive():
            watcher.join(2)
        source.close()
    return result


def _gpu(recent: Recent, index: int, error: Said) -> GpuSample:
    if error:
        raise Fault(current().text(error))
    known = {sample.index: sample for sample in recent.gpus()}
    if index not in known:
        names = tuple(f"GPU {one}" for one in known)
        raise Fault(
            t("there is no GPU {gpu}; there is {known}", gpu=index, known=names)
            if names
            else t("there is no GPU {gpu}, and no other", gpu=index)
        )
    return known[index]


def _earlier(database: str) -> list[StressResult]:
    return [run for _, run in _runs(database, missing_ok=True)]


def _runs(database: str, *, missing_ok: bool = False) -> list[tuple[int, StressResult]]:
    from wslgpud.store import Reader, StoreError  # noqa: PLC0415 - the database only when it is asked

    try:
        with Reader(database) as reader:
            return reader.stress_runs()
    except StoreError as error:
        if missing_ok:
            return []
        raise Fault(cause(error)) from error


def _keep(result: StressResult, settings: configuration.Config, folder: Path, database: str) -> None:
    """Write the run into the database, or leave it for the daemon that owns it."""
    from wslgpud.jobs import leave  # noqa: PLC0415
    from wslgpud.store import LockedError, Store, StoreError  # noqa: PLC0415

    try:
        if _anothers(folder):
            leave(folder, result)
            return
        with Store(database, settings.store) as store:
            store.record_stress(result)
    except LockedError:
        leave(folder, result)
    except (StoreError, OSError) as error:
        typer.echo("wslgpud: " + t("the run was not kept: {why}", why=cause(error)), err=True)


def _anothers(folder: Path) -> bool:
    """Tell whether we are root and the folder is the service's.

    Root writes no database there: a link in its place would have it write anywhere, and what SQLite adds to a
    database would be root's, so that the service could not open it any more.
    """
    return os.geteuid() == 0 and folder.stat().st_uid != 0


@app.command()
def history(
    config: ConfigOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="how many runs, the newest", min=1)] = 30,
    since: SinceOption = "",
    until: UntilOption = "now",
    plot: PlotOption = None,
) -> None:
    """Show the runs so far, one a line.

    Examples:
        wslgpud stress history --since 30d
        wslgpud stress history --plot nights.png  # usable VRAM, bandwidth and errors over the nights
    """
    start, end = span(since, until, time.time()) if since else (0.0, moment(until, time.time()))
    runs = [(n, run) for n, run in _runs(database_of(config, state)) if start <= run.wall <= end][-limit:]
    if (file := picture(plot)) is not None:
        from wslgpud.plots import PlotError, plot_stress  # noqa: PLC0415

        try:
            plot_stress([run for _, run in runs], file)
        except PlotError as error:
            raise Fault(cause(error)) from error
        typer.echo(t("drawn: {path}", path=str(file)), err=True)
    if as_json:
        print(json.dumps([_summary(*one) for one in runs], indent=2, ensure_ascii=False))
        return
    from wslgpud.cli.stress_screen import print_curves, print_history  # noqa: PLC0415

    if plot is not None and file is None:
        print_curves([run for _, run in runs])
    print_history(runs)


def _summary(number: int, run: StressResult) -> dict[str, Any]:
    from wslgpud.store.stress_rows import to_json  # noqa: PLC0415

    document = to_json(run, current().text)
    del document["detail"]
    return {"id": number, **document}


@app.command()
def show(
    number: Annotated[int, typer.Argument(metavar="ID", help="number of the run, see history")],
    config: ConfigOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one run with all its rows.

    Examples:
        wslgpud stress show 12
    """
    run = _one(_runs(database_of(config, state)), number)
    if as_json:
        from wslgpud.store.stress_rows import to_json  # noqa: PLC0415

        document = {"id": number, **to_json(run, current().text)}
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return
    from wslgpud.cli.stress_screen import print_run  # noqa: PLC0415

    print_run(run, rows=True)


def _one(runs: list[tuple[int, StressResult]], number: int) -> StressResult:
    found = next((run for known, run in runs if known == number), None)
    if found is None:
        raise Fault(t("there is no stress run {number}; wslgpud stress history lists them", number=number))
    return found


@app.command()
def compare(
    one: Annotated[
        int | None, typer.Argument(metavar="ID", help="number of a run; without any: driver by driver")
    ] = None,
    other: Annotated[int | None, typer.Argument(metavar="ID", help="number of another run")] = None,
    config: ConfigOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two runs, or the medians of each driver and torch.

    Examples:
        wslgpud stress compare 11 12
        wslgpud stress compare  # driver by driver
    """
    from wslgpud.stress.history import by_key, differences  # noqa: PLC0415

    runs = _runs(database_of(config, state))
    if one is not None:
        if other is None:
            raise Fault("two runs are needed, or none for driver by driver")
        columns = {str(number): [_one(runs, number)] for number in (one, other)}
    else:
        columns = by_key([run for _, run in runs])
    table = differences(columns)
    if as_json:
        print(json.dumps({"columns": list(columns), "rows": table}, indent=2))
        return
    from wslgpud.cli.stress_screen import print_differences  # noqa: PLC0415

    print_differences(list(columns), table)
