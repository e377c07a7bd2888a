"""``wslgpud alerts``: what is open, whether messages arrive, and quiet when it is wanted."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wslgpud.cli.commands import App
from wslgpud.cli.common import (
    ConfigOption,
    Fault,
    JsonOption,
    StateOption,
    data_folder,
    loaded,
    open_reader,
    warn,
)
from wslgpud.cli.help import padded, wrapped
from wslgpud.cli.incidents import local, recent
from wslgpud.cli.moments import seconds
from wslgpud.client import answering
from wslgpud.words import Message, cause, current, failure, t

if TYPE_CHECKING:
    from wslgpud.alerts.control import Control, ControlFile

#: longer lines are hard to read
_MOST_COLUMNS = 100

app = App(help="List open alerts, send a test message, silence rules.")


@app.command("list")
def list_(config: ConfigOption = None, as_json: JsonOption = False, state: StateOption = None) -> None:
    """List open incidents, and the silences that hold.

    Examples:
        wslgpud alerts list
    """
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
        note = f"  ({t('acknowledged')})" if i["id"] in control.acknowledged else ""
        since = t("since {time}", time=local(i["opened"]))
        print(f"{i['id']:>8}  {padded(t(i['level']), 9)}  {since}  {i['headline']}{note}")
    for s in silences:
        told = t(
            "silenced until {until_wall}: {rule} of {name}",
            until_wall=s.until_wall,
            rule=s.rule,
            name=s.resource,
        )
        print(told)
    if not found:
        print(t("nothing is open"))


def _open(config: Path | None, state: Path | None) -> list[dict[str, Any]]:
    """Return what is open, from the database and from the daemon itself: a full disk takes no rows."""
    from wslgpud.alerts.report import summary  # noqa: PLC0415

    with open_reader(config, state) as reader:
        found = [summary(i, current()) for i in recent(reader, math.inf) if i.closed_wall is None]
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
    """Show one incident, as 'wslgpud incidents' with its number does.

    Examples:
        wslgpud alerts show 12
    """
    from wslgpud.cli.incidents import incidents  # noqa: PLC0415

    incidents(number, config=config, as_json=as_json, plot=None, state=state)


@app.command()
def explain(
    rule: Annotated[
        str,
        typer.Argument(metavar="RULE", help="rule, as 'alerts show' names it; all of them without one"),
    ] = "",
) -> None:
    """Explain a rule at length, and how to act on it.

    Examples:
        wslgpud alerts explain oom_kill
    """
    from wslgpud.alerts.runbook import sections  # noqa: PLC0415

    known = sections(current())
    if rule and rule not in known:
        raise Fault("there is no rule {rule}; there are: {names}", rule=rule, names=tuple(known))
    columns = min(_MOST_COLUMNS, shutil.get_terminal_size().columns)
    shown = (f"{name}\n{wrapped(text, columns)}" for name, text in known.items() if rule in ("", name))
    print("\n\n".join(shown))


@app.command("test")
def try_channels(config: ConfigOption = None) -> None:
    """Send a test message through every channel, now, and say which took it.

    Examples:
        wslgpud alerts test
    """
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
        raise Fault(cause(error)) from error
    if not channels:
        raise Fault("no channel is configured and none was found; see [alerts] in 'wslgpud config show'")
    message = {
        "at": iso(time.time()), "since": iso(time.time()), "kind": "closed", "rule": "test",
        "resource": "test", "level": "ok", "previous_level": "ok", "host": socket.gethostname(),
        "headline": t("Test message from wslgpud: alerts arrive here"),
        "evidence": t("Sent by 'wslgpud alerts test'. Nothing is wrong."),
    }  # fmt: skip
    failed = False
    for channel in channels:
        try:
            channel.send(message)
            told = t("took it (gets {level} and worse)", level=t(levels[channel.name].label))
            print(f"{channel.name:<28}  {told}")
        except DeliveryError as error:
            failed = True
            told = t("failed: {reason}", reason=cause(error))
            print(f"{channel.name:<28}  {told}")
    if failed:
        raise typer.Exit(1)


@app.command()
def silence(
    rule: Annotated[str, typer.Argument(metavar="RULE", help="rule, or * for all")],
    lasting: Annotated[
        str, typer.Option("--for", metavar="TIME", help="how long: 30min, 2h, 1d; 0 ends it")
    ] = "1h",
    resource: Annotated[
        str, typer.Option("--resource", metavar="NAME", help="only for this resource (ram, gpu0, ...)")
    ] = "*",
    state: StateOption = None,
) -> None:
    """Send no messages of a rule for a while; its incidents are still recorded.

    Examples:
        wslgpud alerts silence swap_thrash --for 2h
        wslgpud alerts silence swap_thrash --for 0  # end it
    """
    from wslgpud.alerts.control import ControlFile, Silence  # noqa: PLC0415
    from wslgpud.alerts.rules import OTHERS, RULES  # noqa: PLC0415

    known = [*OTHERS, *(r.name for r in RULES)]
    if rule != "*" and rule not in known:
        raise Fault("there is no rule {rule}; there are: {names}", rule=rule, names=tuple(known))
    span, now = seconds(lasting, zero=True), time.time()

    def change(before: Control) -> Control:
        kept = [s for s in before.silences if s.until_wall > now and (s.rule, s.resource) != (rule, resource)]
        added = [Silence(rule, resource, now + span)] if span else []
        return replace(before, silences=(*kept, *added))

    _write(ControlFile(data_folder(state)), change)
    if span:
        print(t("{rule} of {name}: silent for {span_seconds}", rule=rule, name=resource, span_seconds=span))
    else:
        print(t("{rule} of {name}: not silent any more", rule=rule, name=resource))


@app.command()
def ack(
    number: Annotated[int, typer.Argument(metavar="ID", help="number of the incident")],
    config: ConfigOption = None,
    state: StateOption = None,
) -> None:
    """Acknowledge an incident: no repeats of it, unless it gets worse.

    Examples:
        wslgpud alerts ack 12
    """
    from wslgpud.alerts.control import ControlFile  # noqa: PLC0415

    found = next((i for i in _open(config, state) if i["id"] == number), None)
    if found is None:
        raise Fault(
            "incident {number} is not open; 'wslgpud alerts list' shows those that are", number=number
        )

    def change(before: Control) -> Control:
        return replace(before, acknowledged=(*(n for n in before.acknowledged if n != number), number))

    _write(ControlFile(data_folder(state)), change)
    print(t("incident {number} is acknowledged: {what}", number=number, what=Message(found["headline"])))


@app.command()
def release(state: StateOption = None) -> None:
    """Resume programs that a daemon had stopped (save_signal = "SIGSTOP") before it died.

    Examples:
        wslgpud alerts release
    """
    from wslgpud.alerts.selfsave import release as let_go_on  # noqa: PLC0415
    from wslgpud.alerts.stopped import StoppedFile  # noqa: PLC0415

    going = let_go_on(StoppedFile(data_folder(state)))
    print(t("pid {pids} goes on", pids=tuple(going)) if going else t("no program is stopped"))


def _write(file: ControlFile, change: Callable[[Control], Control]) -> None:
    try:
        file.change(change)
    except OSError as error:
        raise Fault(
            "cannot write {file}: {reason}; is it another user's?", file=str(file.path), reason=failure(error)
        ) from error
