"""``wslgpud alerts``: open alerts, test messages, silences."""

from __future__ import annotations

import math
import os
import shutil
import time
from pathlib import Path
from typing import Annotated, Any

from wslgpud import config as configuration
from wslgpud.alerts import dispatcher
from wslgpud.alerts.channels import DeliveryError
from wslgpud.alerts.control import ControlFile
from wslgpud.alerts.messages import local_time, trial
from wslgpud.alerts.report import summaries
from wslgpud.alerts.rules import OTHERS, RULES, runbook
from wslgpud.cli import common, completion
from wslgpud.cli.commands import CommandGroup
from wslgpud.cli.common import Fault, argument, complain, database_of, loaded, option, own_config, warn
from wslgpud.cli.console import Console, table_of
from wslgpud.cli.help import wrapped
from wslgpud.cli.incidents import incidents, recent
from wslgpud.client import answering
from wslgpud.host import Host
from wslgpud.store import Reader
from wslgpud.words import cause, current, t
from wslgpud.words.moments import seconds

#: longest comfortable line
_MAX_COLUMNS = 100

app = CommandGroup()


@app.command("list")
def list_(config: common.Config = None, as_json: common.Json = False, state: common.State = None) -> None:
    """List open incidents and active silences.

    Examples:
        wslgpud alerts list
    """
    control = ControlFile(common.data_folder(state), warn).now
    incidents = _open(config, state)
    silences = [s for s in control.silences if s.until_wall > time.time()]
    if as_json:
        quiet = [
            {"rule": s.rule, "resource": s.resource, "until_seconds": round(s.until_wall - time.time())}
            for s in silences
        ]
        known = [{**i, "acknowledged": i["id"] in control.acknowledged} for i in incidents]
        common.print_json({"open": known, "silences": quiet})
        return
    table = table_of(">", "<", "<", "~")
    for i in incidents:
        note = f"  ({t('acknowledged')})" if i["id"] in control.acknowledged else ""
        since = t("since {time}", time=local_time(i["opened"]))
        table.add_row(str(i["id"]), t(i["level"]), since, f"{i['headline']}{note}")
    if incidents:
        Console().print(table)
    for s in silences:
        until, rule, name = s.until_wall, s.rule, s.resource
        print(t("silenced until {until_wall}: {rule} of {name}", until_wall=until, rule=rule, name=name))
    if not incidents:
        print(t("no open incidents"))


def _open(config: Path | None, state: Path | None) -> list[dict[str, Any]]:
    """Return the open incidents, from the database and from the daemon itself: rows may be missing on a full disk."""
    with Reader(database_of(config, state)) as reader:
        incidents = summaries([i for i in recent(reader, math.inf) if i.closed_wall is None], current())
    _, now = answering([common.data_folder(state)], complain) or (None, {})
    reported = now.get("incidents", ())
    written = {i["id"] for i in incidents}
    return incidents + [{**i, "opened": i["since"]} for i in reported if i["id"] not in written]


@app.command()
def show(
    number: Annotated[int, argument("ID", "number of the incident", completion.incident)],
    config: common.Config = None,
    as_json: common.Json = False,
    state: common.State = None,
) -> None:
    """Show one incident, like 'wslgpud incidents' with its number.

    Examples:
        wslgpud alerts show 12
    """
    incidents(number, config=config, as_json=as_json, plot=None, state=state)


@app.command()
def explain(
    rule: Annotated[str, argument("RULE", "rule, as in 'alerts show'; all rules by default", completion.rule)] = "",
) -> None:
    """Explain a rule in detail, and what to do about it.

    Examples:
        wslgpud alerts explain oom_kill
    """
    known = runbook(current())
    if rule and rule not in known:
        raise Fault("there is no rule {rule}; there are: {names}", rule=rule, names=tuple(known))
    columns = min(_MAX_COLUMNS, shutil.get_terminal_size().columns)
    print("\n\n".join(f"{name}\n{wrapped(text, columns)}" for name, text in known.items() if rule in ("", name)))


@app.command("test")
def try_channels(config: common.Config = None) -> None:
    """Send a test message through every channel now, and report which accepted it.

    Examples:
        wslgpud alerts test
    """
    settings = loaded(config).config.alerts
    channels = dispatcher.channels(settings, Host(), os.environ)
    levels = dispatcher.levels(settings)
    if not channels:
        file = str(config or configuration.find_file(os.environ) or own_config())
        raise Fault(
            "no channel is configured and none was found here: add one below [alerts] in {file} and restart the daemon,"
            " such as {example}; 'wslgpud config show' explains each key",
            file=file,
            example='urls = ["ntfy://your-topic"]',
        )
    message = trial(time.time(), "wslgpud alerts test")
    status = 0
    for channel in channels:
        try:
            channel.send(message)
            outcome = t("accepted it (gets {level} and worse)", level=t(levels[channel.name].label))
        except DeliveryError as error:
            status, outcome = 1, t("failed: {reason}", reason=cause(error))
        print(f"{channel.name:<28}  {outcome}")
    raise SystemExit(status)


@app.command()
def silence(
    rule: Annotated[str, argument("RULE", "rule, or * for all", completion.rule)],
    lasting: Annotated[str, option("--for", "TIME", "how long: 30min, 2h, 1d; 0 ends it")] = "1h",
    resource: Annotated[str, option("--resource", "NAME", "only for this resource (ram, gpu0, ...)")] = "*",
    state: common.State = None,
) -> None:
    """Send no messages of a rule for a while; its incidents are still recorded.

    Examples:
        wslgpud alerts silence swap_thrash --for 2h
        wslgpud alerts silence swap_thrash --for 0  # end it
    """
    known = [*OTHERS, *(r.name for r in RULES)]
    if rule != "*" and rule not in known:
        raise Fault("there is no rule {rule}; there are: {names}", rule=rule, names=tuple(known))
    length = seconds(lasting, zero=True)
    common.order(state, "silence", rule=rule, resource=resource, seconds=length)
    quiet = t("{rule} of {name}: silent for {span_seconds}", rule=rule, name=resource, span_seconds=length)
    print(quiet if length else t("{rule} of {name}: no longer silenced", rule=rule, name=resource))


@app.command()
def ack(
    number: Annotated[int, argument("ID", "number of the incident", completion.incident)],
    config: common.Config = None,
    state: common.State = None,
) -> None:
    """Acknowledge an incident: it is not repeated unless it gets worse, and a lost job counts as seen.

    Examples:
        wslgpud alerts ack 12
    """
    with Reader(database_of(config, state)) as reader:
        known = next((i for i in recent(reader, 0.0) if i.id == number), None)
        told = [] if known is None else summaries([known], current())
    told += [i for i in _open(config, state) if i["id"] == number and not told]
    if not told:
        raise Fault("there is no incident {number}; 'wslgpud incidents' lists them", number=number)
    # A warning that is acknowledged does not say that the kill after it was seen: that is another row.
    common.order(state, "acknowledge", incident=number, seen_id=-1 if known is None else known.last_id)
    print(t("incident {number} is acknowledged: {what}", number=number, what=told[0]["headline"]))
