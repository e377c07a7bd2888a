"""``wslgpud alerts``: what is open, whether messages arrive, and quiet when it is wanted."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wslgpud.cli.common import (
    Commands,
    ConfigOption,
    Fault,
    JsonOption,
    StateOption,
    data_folder,
    loaded,
    open_reader,
    warn,
)
from wslgpud.cli.incidents import local, recent
from wslgpud.client import answering
from wslgpud.words import current

if TYPE_CHECKING:
    from wslgpud.alerts.control import Control, ControlFile

app = typer.Typer(
    cls=Commands, help="Alerts: what is open, whether they arrive, silences.", no_args_is_help=True
)

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0}


@app.command("list")
def list_(config: ConfigOption = None, as_json: JsonOption = False, state: StateOption = None) -> None:
    """List open incidents, and the silences that hold."""
    from wslgpud.alerts.control import ControlFile  # noqa: PLC0415 - each command loads what it needs

    control = ControlFile(data_folder(state), warn).now()
    found = _open(config, state)
    silences = [s for s in control.silences if s.until_wall > time.time()]
    if as_json:
        document = {
            "open": [{**i, "acknowledged": i["id"] in control.acknowledged} for i in found],
            "silences": [
                {"rule": s.rule, "resource": s.resource, "until_seconds": round(s.until_wall - time.time())}
                for s in silences
            ],
        }
        print(json.dumps(document, indent=2))
        return
    for i in found:
        note = "  (acknowledged)" if i["id"] in control.acknowledged else ""
        print(f"{i['id']:>8}  {i['level']:<9}  since {local(i['opened'])}  {i['headline']}{note}")
    for s in silences:
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(s.until_wall))
        print(f"silenced until {until}: {s.rule} of {s.resource}")
    if not found:
        print("nothing is open")


def _open(config: Path | None, state: Path | None) -> list[dict[str, Any]]:
    """Return what is open, from the database and from the daemon itself: a full disk takes no rows."""
    from wslgpud.alerts.report import summary  # noqa: PLC0415

    with open_reader(config, state) as reader:
        found = [summary(i, current()) for i in recent(reader, 0.0) if i.closed_wall is None]
    _, now = answering([data_folder(state)], warn) or (None, {})
    told = now.get("incidents", ())
    written = {i["id"] for i in found}
    return found + [{**i, "opened": i["since"]} for i in told if i["id"] not in written]


@app.command()
def show(
    number: Annotated[int, typer.Argument(metavar="ID", help="number of the incident")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Show one, as 'wslgpud incidents ID' does."""
    from wslgpud.cli.incidents import incidents  # noqa: PLC0415

    incidents(number, config=config, as_json=as_json, plot=None, state=state)


@app.command()
def explain(
    rule: Annotated[
        str, typer.Argument(help="rule, as 'alerts show' names it; all of them without one")
    ] = "",
) -> None:
    """Say what a rule means and what to do about it, at length."""
    from wslgpud.alerts.runbook import sections  # noqa: PLC0415

    known = sections()
    if rule and rule not in known:
        raise Fault(f"there is no rule {rule}; there are: {', '.join(known)}")
    print("\n\n".join(f"{name}\n{text}" for name, text in known.items() if rule in ("", name)))


@app.command("test")
def try_channels(config: ConfigOption = None) -> None:
    """Send a test message through every channel, now, and say which took it."""
    from wslgpud.alerts import build  # noqa: PLC0415
    from wslgpud.alerts.channels import DeliveryError  # noqa: PLC0415
    from wslgpud.alerts.message import iso  # noqa: PLC0415
    from wslgpud.config_key import ConfigError  # noqa: PLC0415
    from wslgpud.host import Host  # noqa: PLC0415

    settings = loaded(config).config.alerts
    try:
        channels = build.channels(settings, Host(), os.environ)
        levels = build.levels(settings, [channel.name for channel in channels])
    except ConfigError as error:
        raise Fault(str(error)) from error
    if not channels:
        raise Fault("no channel is configured and none was found; see [alerts] in 'wslgpud config show'")
    message = {
        "at": iso(time.time()), "since": iso(time.time()), "kind": "closed", "rule": "test",
        "resource": "test", "level": "ok", "previous_level": "ok", "host": socket.gethostname(),
        "headline": "Test message from wslgpud: alerts arrive here",
        "evidence": "Sent by 'wslgpud alerts test'. Nothing is wrong.",
    }  # fmt: skip
    failed = False
    for channel in channels:
        try:
            channel.send(message)
            print(f"{channel.name:<28}  took it (gets {levels[channel.name].label} and worse)")
        except DeliveryError as error:
            failed = True
            print(f"{channel.name:<28}  failed: {error}")
    if failed:
        raise typer.Exit(1)


@app.command()
def silence(
    rule: Annotated[str, typer.Argument(help="rule, or * for all")],
    lasting: Annotated[str, typer.Option("--for", help="how long: 30m, 2h, 1d; 0 ends a silence")] = "1h",
    resource: Annotated[str, typer.Option(help="only for this resource (ram, gpu0, ...)")] = "*",
    state: StateOption = None,
) -> None:
    """Send no messages of a rule for a while; incidents are recorded all the same."""
    from wslgpud.alerts.control import ControlFile, Silence  # noqa: PLC0415
    from wslgpud.alerts.rules import OTHERS, RULES  # noqa: PLC0415

    known = [*OTHERS, *(r.name for r in RULES)]
    if rule != "*" and rule not in known:
        raise Fault(f"there is no rule {rule}; there are: {', '.join(known)}")
    match = re.fullmatch(r"(\d{1,4})([mhd])|0", lasting)
    if match is None:
        raise Fault(f"--for must be like 30m, 2h or 1d, not {lasting!r}")
    seconds = float(match[1]) * _UNITS[match[2]] if match[1] else 0.0
    now = time.time()

    def change(before: Control) -> Control:
        kept = [s for s in before.silences if s.until_wall > now and (s.rule, s.resource) != (rule, resource)]
        added = [Silence(rule, resource, now + seconds)] if seconds else []
        return replace(before, silences=(*kept, *added))

    _write(ControlFile(data_folder(state)), change)
    print(f"{rule} of {resource}: " + (f"silent for {lasting}" if seconds else "not silent any more"))


@app.command()
def ack(
    number: Annotated[int, typer.Argument(metavar="ID", help="number of the incident")],
    config: ConfigOption = None,
    state: StateOption = None,
) -> None:
    """Acknowledge an incident: no repeats of it, unless it gets worse."""
    from wslgpud.alerts.control import ControlFile  # noqa: PLC0415

    found = next((i for i in _open(config, state) if i["id"] == number), None)
    if found is None:
        raise Fault(f"incident {number} is not open; 'wslgpud alerts list' shows those that are")

    def change(before: Control) -> Control:
        return replace(before, acknowledged=(*(n for n in before.acknowledged if n != number), number))

    _write(ControlFile(data_folder(state)), change)
    print(f"incident {number} is acknowledged: {found['headline']}")


@app.command()
def release(state: StateOption = None) -> None:
    """Let programs go on that a daemon had stopped (save_signal = "SIGSTOP") before it died."""
    from wslgpud.alerts.selfsave import release as let_go_on  # noqa: PLC0415
    from wslgpud.alerts.stopped import StoppedFile  # noqa: PLC0415

    going = let_go_on(StoppedFile(data_folder(state)))
    print(f"pid {', '.join(map(str, going))} goes on" if going else "no program is stopped")


def _write(file: ControlFile, change: Callable[[Control], Control]) -> None:
    try:
        file.change(change)
    except OSError as error:
        raise Fault(f"cannot write {file.path}: {error.strerror}; is it another user's?") from error
