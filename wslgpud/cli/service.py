"""``wslgpud run`` and ``wslgpud service``: the daemon in the foreground, and as a service."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from wslgpud import client
from wslgpud.advise import doctor as doctors
from wslgpud.app import become, process
from wslgpud.cli import common
from wslgpud.cli.commands import CommandGroup
from wslgpud.cli.common import Fault, complain, flag, option
from wslgpud.cli.console import Console, pairs
from wslgpud.cli.doctor import print_brief
from wslgpud.host import Host
from wslgpud.service import install as installing
from wslgpud.service import systemctl
from wslgpud.service.changes import Changes, use_the_systems_programs
from wslgpud.service.install import NotStarted, Options
from wslgpud.service.places import Places, offered_extras, places
from wslgpud.service.systemctl import ServiceState, state_of
from wslgpud.sources.wsl import generation
from wslgpud.words import current, t

app = CommandGroup()


def run(config: common.Config = None, state: common.State = None, host_root: common.HostRoot = None) -> None:
    """Run the daemon: sample this machine, answer Prometheus, warn before memory runs out.

    Examples:
        wslgpud run  # in the foreground, with its data in your own folder
        wslgpud run --config test.toml --state /tmp/wslgpud  # next to the service, for testing
    """
    become(process.order(config=config, state=state, host_root=host_root))


User = Annotated[bool, flag("--user", "a service of your own, without root; less protected")]
KeepAlive = Annotated[bool, flag("--keep-alive", "have a scheduled task of Windows keep this WSL distribution running")]
_EXTRA = option(
    "--extra", "NAME", "install an optional part, such as apprise", shell_complete=common.completer(offered_extras)
)
_ALLOW = option(
    "--allow",
    "NAME",
    "relax the sandbox, see deploy/README.md",
    shell_complete=common.completer(installing.offered_permissions),
)
Extra = Annotated[list[str] | None, _EXTRA]
Allow = Annotated[list[str] | None, _ALLOW]


@app.command()
def install(
    user: User = False,
    dry_run: common.DryRun = False,
    keep_alive: KeepAlive = False,
    extra: Extra = None,
    allow: Allow = None,
) -> None:
    """Install the service, or upgrade it to the version of this command.

    Data and configuration stay. The running version stays until the new one has proved to start.

    Examples:
        sudo wslgpud service install
        wslgpud service install --user
        sudo wslgpud service install --extra apprise --keep-alive
    """
    _install("install", Options(extra or (), allow or (), keep_alive), user=user, dry_run=dry_run)


@app.command()
def upgrade(user: User = False, dry_run: common.DryRun = False) -> None:
    """Upgrade the service to the version of this command, with the extras and permissions that it has.

    Examples:
        sudo wslgpud service upgrade  # after 'pipx upgrade wslgpud'
    """
    where = places(user=user)
    if not where.is_installed:
        raise Fault("no service is installed here: {command} does that", command=_typed("install", user=user))
    _install("upgrade", Options(), user=user, dry_run=dry_run)


def _install(action: str, options: Options, *, user: bool, dry_run: bool) -> None:
    where, changes = _begin(action, user=user, dry_run=dry_run)
    if not dry_run:
        complain(t("preparing the service (half a minute at most)"))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # partial changes are undone
    try:
        version = installing.install(options, where, changes)
    except NotStarted as error:
        print(error.last_words.rstrip(), file=sys.stderr)
        raise
    if not _shown(changes):
        print(t("wslgpud {version} runs, and starts with the machine.", version=version))
        Console().print(pairs(_started(where)))
        if generation(Host()) and not options.keep_alive and not installing.keeps_alive():
            print("\n" + _how_to_keep_alive(user=user))
        print()
        print_brief(doctors.run(Host(), common.loaded(where.configuration).config, None, str(where.data)))


def _started(where: Places) -> list[tuple[str, str]]:
    daemon = client.answering([where.data], lambda _: None)
    restart = "systemctl --user restart wslgpud" if where.user else "sudo systemctl restart wslgpud"
    rows = [
        (t("page"), f"{daemon[0].url}/" if daemon else ""),
        (t("status"), "wslgpud status"),
        (t("log"), "journalctl --user -u wslgpud" if where.user else "journalctl -u wslgpud"),
        (t("settings"), t("{path}, then: {command}", path=str(where.configuration), command=restart)),
        (t("remove"), _typed("uninstall", user=where.user)),
    ]
    if where.user and not systemctl.lingers():
        command = f"loginctl enable-linger {Path.home().name}"
        rows.append((t("caution"), t("it ends when you log out, unless root runs: {command}", command=command)))
    return rows


def _how_to_keep_alive(*, user: bool) -> str:
    return t(
        "Windows stops this distribution 15 s after its last terminal closes, whatever services run in it, unless"
        " %UserProfile%\\.wslconfig has instanceIdleTimeout=-1 below [general] (since WSL 2.9.5 a switch in WSL"
        " Settings; in force after 'wsl --shutdown'). Where WSL does not know that, {command} has a scheduled task of"
        " Windows keep it running.",
        command=_typed("install", "--keep-alive", user=user),
    )


@app.command()
def status(user: User = False, as_json: common.Json = False) -> None:
    """Show the version and state of the service, and how it was installed; exit status 1 if it does not run.

    Shows the system's service, or your own (--user) where that is the only one.

    Examples:
        wslgpud service status
    """
    use_the_systems_programs()
    own, systems = places(user=True), places(user=False)
    user = user or (own.is_installed and not systems.is_installed)
    service = state_of(own if user else systems)
    if as_json:
        common.print_json(asdict(service))
    elif not service.version:
        print(t("no service is installed here: {command} does that", command=_typed("install", user=user)))
    else:
        Console().print(pairs(_rows(service, user=user)))
    raise SystemExit(0 if service.runs else 1)


def _rows(service: ServiceState, *, user: bool) -> list[tuple[str, str]]:
    version, state, command = service.version, service.state, _typed("upgrade", user=user)
    if version != service.command_version and service.kind != "package":
        version += "; " + t("this command is {version}: {command}", version=service.command_version, command=command)
    if not state:
        state = t("unknown: systemd does not answer")
    elif not service.enabled:
        state = t("{state}, does not start with the machine", state=state)
    return [
        (t("version"), version),
        (t("state"), state),
        (t("page"), f"{service.url}/" if service.url and service.runs else ""),
        (t("settings"), service.configuration),
        (t("data"), service.data),
        (t("extras"), current().listed(service.extras)),
        (t("allowed"), current().listed(service.allowed)),
    ]


Purge = Annotated[bool, flag("--purge", "remove data, configuration and accounts, too")]


@app.command()
def uninstall(user: User = False, dry_run: common.DryRun = False, purge: Purge = False) -> None:
    """Remove the service. Data and configuration stay, except with --purge.

    Examples:
        sudo wslgpud service uninstall --dry-run
        sudo wslgpud service uninstall --purge
    """
    where, changes = _begin("uninstall", user=user, dry_run=dry_run)
    if not dry_run:
        complain(t("stopping and removing the service (half a minute at most)"))
    # An earlier removal may have kept data.
    was_there = where.is_installed or (purge and any(path.exists() for path in (where.settings, where.data)))
    kept_paths = installing.uninstall(where, changes, purge=purge)
    if not _shown(changes):
        print(t("wslgpud is removed.") if was_there else t("no service was installed here."))
        for path in kept_paths:
            print(t("  kept: {path}", path=str(path)))


def _begin(action: str, *, user: bool, dry_run: bool) -> tuple[Places, Changes]:
    """Refuse users who cannot do it, and let root find programs only in root's own folders."""
    root = os.geteuid() == 0
    if user and root:
        raise Fault("--user is for the service of an ordinary user; as root, omit it")
    if not user and not root and not dry_run:
        raise Fault(
            "this needs root: {command} (or, without root and with less protection: {other})",
            command=_typed(action, user=False),
            other=_typed(action, user=True),
        )
    use_the_systems_programs()
    os.umask(0o022)
    return places(user=user), Changes(dry=dry_run, tell=common.warn)


def _shown(changes: Changes) -> bool:
    """Print the planned changes, with ``--dry-run``."""
    if changes.dry:
        planned = changes.descriptions or [t("nothing: everything is up to date")]
        print(t("would do:"), *(f"  {line}" for line in planned), sep="\n")
    return changes.dry


def _typed(action: str, *more: str, user: bool) -> str:
    """Return one of our commands as it must be typed: sudo does not search pipx's folder."""
    program = Path(sys.argv[0])
    usual = str(program).startswith(("/usr/", "/opt/")) or ".releases/" in str(program) or not program.is_absolute()
    command = ["wslgpud" if usual else str(program)]
    if program.name == "__main__.py":
        command = [sys.executable, "-m", "wslgpud"]
    return ("" if user else "sudo ") + shlex.join([*command, "service", action, *["--user"] * user, *more])
