"""``wslgpud brake``: pause the job that is about to use up memory."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from wslgpud import config as configuration
from wslgpud.brake.brake import RESOURCE_KINDS, allowed_users
from wslgpud.brake.paused_job import Command
from wslgpud.brake.watchdog import HeldJobsFile
from wslgpud.cli import common
from wslgpud.cli.commands import CommandGroup
from wslgpud.cli.common import Fault, argument, complain, database_of, loaded, option, own_config, refused, warn
from wslgpud.client import answering
from wslgpud.config import config_files
from wslgpud.security import safe_files
from wslgpud.words import current, known, t, template
from wslgpud.words.moments import local_time, span

app = CommandGroup()

_PAUSED = template("{who}, paused at {time} after {ran_seconds} of work")
_HOLDS = template(
    "uses {size_bytes}[ in {count} processes]; resumes automatically at {needed_bytes} of {resource} free"
    "[ ({now_bytes} now)]"
)
_JOB = argument("ID", "number of the paused job, as 'wslgpud brake list' shows it")


@app.command()
def on(
    users: Annotated[list[str] | None, option("--user", "NAME", "user whose jobs may be paused; default: you")] = None,
    resources: Annotated[str, option("--resources", "LIST", "kinds of memory to guard; default: ram,gpu,cgroup")] = "",
    config: common.Config = None,
) -> None:
    """Turn the brake on in the configuration.

    Examples:
        sudo wslgpud brake on
        sudo wslgpud brake on --user alice --resources ram,cgroup
    """
    names = users or [os.environ.get("SUDO_USER") or pwd.getpwuid(os.geteuid()).pw_name]
    kinds = resources.split(",") if resources else list(RESOURCE_KINDS)
    allowed_users(configuration.BrakeSettings(users=tuple(names), resources=tuple(kinds)))
    on_for = t("the brake is on for {names}: {kinds}", names=tuple(names), kinds=tuple(kinds))
    file = _changed(config, {"on": True, "users": names, "resources": kinds}, on_for)
    if file == configuration.SYSTEM_FILE:
        print(t("to allow it in the service's sandbox and restart: 'sudo wslgpud service install --allow brake'"))


@app.command()
def off(config: common.Config = None) -> None:
    """Turn the brake off in the configuration; paused jobs resume when the daemon restarts.

    Examples:
        sudo wslgpud brake off
    """
    _changed(config, {"on": False}, t("the brake is off"))


def _changed(config: Path | None, values: dict[str, Any], headline: str) -> Path:
    """Change the configuration, say so, and return its file."""
    file = config or configuration.find_file(os.environ) or own_config()
    config_files.change(file, "brake", values)
    print(headline, t("written to {file}; takes effect when the daemon restarts", file=str(file)), sep="\n")
    return file


@app.command("list")
def list_(as_json: common.Json = False, state: common.State = None) -> None:
    """List the paused jobs.

    Examples:
        wslgpud brake list
    """
    document = _status(state)
    if as_json:
        common.print_json({"held": document.get("held", [])})
        return
    print(*lines(document) or [t("no job is paused")], sep="\n")


def lines(document: Mapping[str, Any]) -> list[str]:
    """Return the lines about paused jobs, given the document of ``wslgpud.serve.status``."""
    now = {forecast["resource"]: forecast["headroom_bytes"] for forecast in document.get("forecasts", ())}
    lines = []
    for job in document.get("held", ()):
        number, facts = job["job"], {name: job[name] for name in ("who", "ran_seconds")}
        lines.append(f"{number:>4}  {t(_PAUSED, time=local_time(job['paused']), **facts)}")
        if job["ending"]:
            lines.append(f"      {t('stopping: SIGTERM sent')}")
            continue
        facts = {name: job[name] for name in ("size_bytes", "needed_bytes", "resource")}
        facts |= {"count": job["processes"]} if job["processes"] > 1 else {}
        facts |= {"now_bytes": now[job["resource"]]} if job["resource"] in now else {}
        commands = (f"sudo wslgpud brake {what} {number}" for what in ("resume", "stop"))
        lines += [f"      {t(_HOLDS, **facts)}", f"      {'  |  '.join(commands)}"]
    return lines


def _status(state: Path | None) -> dict[str, Any]:
    """Return the running daemon's status; empty if none runs."""
    answer = answering(common.daemon_folders(state), complain)
    return answer[1] if answer else {}


@app.command()
def resume(job: Annotated[int, _JOB], state: common.State = None) -> None:
    """Resume a paused job now; it is not paused again until the memory warning has cleared.

    Examples:
        sudo wslgpud brake resume 3
    """
    _command(job, "resume", state)
    print(t("resuming job {number}", number=job))


@app.command()
def stop(job: Annotated[int, _JOB], state: common.State = None) -> None:
    """Stop a paused job: SIGTERM, so that it can save, then SIGKILL after 10 s or when memory runs short.

    Examples:
        sudo wslgpud brake stop 3
    """
    _command(job, "stop", state)
    print(t("stopping job {number}", number=job))


def _command(job: int, command: Command, state: Path | None) -> None:
    daemon, document = answering(common.daemon_folders(state), complain) or (None, {})
    paused = [one["job"] for one in document.get("held", ()) if not one["ending"]]
    if daemon is None or job not in paused:
        others = {"numbers": tuple(map(str, paused))} if paused else {}
        raise Fault("job {number} is not paused; [these are: {numbers}|no job is]", number=job, **others)
    daemon.post("/api/v1/brake", {"job": job, "command": command})


@app.command()
def release(state: common.State = None) -> None:
    """Resume all jobs left paused by a daemon that died; the service does this automatically.

    Examples:
        sudo wslgpud brake release
    """
    if _status(state).get("held"):
        raise Fault("the running daemon manages its paused jobs: 'wslgpud brake resume ID' resumes one")
    file = HeldJobsFile(common.data_folder(state))
    with refused("{path} cannot be read: {why}", path=str(file.path)), suppress(FileNotFoundError):
        safe_files.contents(file.path)  # a list that nobody can read would look like an empty one
    problems = file.resume_all()
    for number, why in problems.items():
        if why:
            raise Fault("job {number} cannot be resumed: {why}", number=number, why=known(why))
    print(t("jobs resumed: {count}", count=len(problems)) if problems else t("no job is paused"))


@app.command("try")
def try_(
    since: common.Since = "30d",
    until: common.Until = "now",
    config: common.Config = None,
    as_json: common.Json = False,
    state: common.State = None,
) -> None:
    """Show what the brake would have paused in the recorded history; pauses nothing.

    Examples:
        wslgpud brake try --since 7d
    """
    # Late: only this command needs the database and the engine.
    from wslgpud.advise.brake_trial import pauses
    from wslgpud.store import Reader

    settings = loaded(config).config.brake
    walls = span(since, until, time.time())
    with Reader(database_of(config, state)) as reader:
        trial_pauses = list(pauses(reader, walls, settings))
    if as_json:
        documents = [{**current().document(pause), "who": current().text(pause["who"])} for pause in trial_pauses]
        common.print_json({"pauses": documents})
        return
    for pause in trial_pauses:
        left = t("{left_bytes} of {resource} left", left_bytes=pause["left_bytes"], resource=pause["resource"])
        print(f"{local_time(pause['at'])}  {current().text(pause['who'] or t('culprit uncertain'))}, {left}")
        print(f"{' ' * 21}{t('what happened')}: {current().text(pause['outcome'])}")
    if not trial_pauses:
        print(t("nothing would have been paused"))
    elif not settings.on:
        warn("the brake is off; 'sudo wslgpud brake on' turns it on")
