"""Commands: parse, call, print."""

from __future__ import annotations

from typing import Annotated

import typer

from wslgpud import __version__
from wslgpud.cli import (
    alerts,
    capture,
    config,
    db,
    doctor,
    fit,
    guard,
    incidents,
    monitor,
    record,
    replay,
    run,
    status,
    stress,
    sweep,
    wslconfig,
)
from wslgpud.cli import export as exports
from wslgpud.cli import history as histories
from wslgpud.cli.commands import App

app = App(
    name="wslgpud",
    help="""Watches GPU, RAM and swap under WSL2 and warns before memory runs out.

    Examples:
    wslgpud status  # the state of this machine
    wslgpud monitor  # the machine, live
    wslgpud incidents  # incidents of the last 30 days
    wslgpud doctor  # mistakes in the setup of this machine, with their fixes
    """,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"wslgpud {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and end")
    ] = False,
) -> None:
    pass


app.command()(run.run)
app.command()(status.status)
app.command()(monitor.monitor)
app.command()(doctor.doctor)
app.add_typer(config.app, name="config")
app.command()(record.record)
app.command("replay")(replay.replay_command)
app.command()(capture.capture)
app.add_typer(alerts.app, name="alerts")
app.command()(incidents.incidents)
app.add_typer(stress.app, name="stress")
app.command(context_settings={"allow_interspersed_args": False})(guard.guard)
app.command()(fit.fit)
app.command()(sweep.sweep)
app.add_typer(wslconfig.app, name="wslconfig")
app.command()(histories.history)
app.command()(exports.export)
app.add_typer(db.app, name="db")
