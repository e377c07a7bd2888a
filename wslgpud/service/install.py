"""Installs, upgrades and removes the service; rolls back if a new version does not start.

The Debian package starts it as a program: ``python3 -I -m wslgpud.service.install configure``.
"""

from __future__ import annotations

import compileall
import grp
import os
import pwd
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import wslgpud
from wslgpud.host import Host, NoData, SourceError
from wslgpud.optional_packages import remedy
from wslgpud.probes import interop
from wslgpud.service import release, systemctl
from wslgpud.service.changes import Changes, ServiceError, output, succeeds
from wslgpud.service.places import PACKAGE, PACKAGED_PROGRAM, STRESS_EXTRA, SYSTEM, Places, offered_extras
from wslgpud.shipped_files import in_folder
from wslgpud.sources.procfs import ACCOUNT
from wslgpud.sources.wsl import generation
from wslgpud.words import Message, MessageError, say

#: a restriction that is relaxed on demand: toasts and Windows' memory need an additional socket type
UNDER_WSL = "wsl"
#: account of the stress test for a Python without a single owner: it owns nothing anywhere
STRESS_ACCOUNT = "wslgpud-stress"
#: groups with access to the journal and the GPU, where it is restricted
_GROUPS = {ACCOUNT: ("systemd-journal", "video", "render"), STRESS_ACCOUNT: ("video", "render")}
_HOMES = {ACCOUNT: str(SYSTEM.data), STRESS_ACCOUNT: "/nonexistent"}


@dataclass(frozen=True)
class Options:
    """The requested options; ``extras`` are added to earlier ones."""

    extras: Collection[str] = ()
    allowed: Collection[str] = ()
    keep_alive: bool = False


class NotStarted(ServiceError):
    """The daemon does not start; ``last_words`` is the end of its log."""

    def __init__(self, message: Message, last_words: str) -> None:
        super().__init__(message)
        self.last_words = last_words


def offered_permissions() -> list[str]:
    """Return the names accepted by ``--allow``."""
    return sorted(Path(name).stem for name in in_folder("deploy/drop-ins"))


def install(options: Options, places: Places, changes: Changes) -> str:
    """Install or upgrade; return the running version, once the daemon has taken a sample.

    Data and configuration stay, and the old version keeps running until the new one has been checked. A Debian package
    is upgraded by dpkg: there this only grants permissions, and installs torch.

    Raises:
        MessageError: it is impossible; the old version keeps running.
        NotStarted: it was installed, but does not start; the previous version, if any, runs again.
    """
    require(options, places)
    python = release.interpreter(places)
    if places.packaged:
        version = wslgpud.__version__
        _run(places, changes, changed=_put(drop_ins(options.allowed, places), places, changes))
    else:
        version = _install_release(python, options, places, changes)
    release.put_torch(python, places, changes, asked=STRESS_EXTRA in options.extras)
    if options.keep_alive:
        description = "make a task of Windows that keeps this distribution running"
        changes.perform(description, lambda: interop.keep_alive(Host(), "create"))
    return version


def _install_release(python: Path, options: Options, places: Places, changes: Changes) -> str:
    extras = sorted({*options.extras, *places.added_extras} - {STRESS_EXTRA})
    new = _wanted(places, python, extras)
    if not (new / "complete").exists():
        contents = ", ".join(["this program", *extras])
        description = f"make {new}: an environment of {python} with {contents}"
        changes.perform(description, lambda: release.make(new, python, extras))
    prepare(new / "bin/wslgpud", places, changes)
    if not changes.dry and places.running != new:
        _check_configuration(new, places)
    units = {places.units / name: text for name, text in in_folder(f"deploy/{places.kind}").items()}
    _start(new, units | drop_ins(options.allowed, places), places, changes)
    _link_shared_files(new, places, changes)
    _tidy_up(new, extras, places, changes)
    return new.name.partition("-")[0]


def require(options: Options, places: Places) -> None:
    """Raises ServiceError: the service cannot be installed here, or not with these options."""
    for names, offered in ((options.extras, offered_extras()), (options.allowed, offered_permissions())):
        if unknown := sorted(set(names) - set(offered)):
            raise ServiceError("there is no {name}: one of {names}", name=unknown[0], names=tuple(offered))
    if places.packaged and Path(sys.prefix) != PACKAGE:
        raise ServiceError(say("the package wslgpud is installed: apt upgrades and removes it"))
    if places.packaged and (others := set(options.extras) - {STRESS_EXTRA}):
        raise ServiceError(
            "a service installed by apt takes no extra but {taken}; for {name}: {command}",
            taken=STRESS_EXTRA,
            name=min(others),
            command=remedy(min(others)),
        )
    systemctl.require(places)


def prepare(program: Path, places: Places, changes: Changes) -> None:
    """Create missing accounts and configuration. Raises MessageError: the system refuses."""
    if not places.user:
        make_accounts(changes)
    _make_settings(program, places, changes)


def drop_ins(allowed_now: Collection[str], places: Places) -> dict[Path, str]:
    """Return this version's drop-ins for all permissions, granted now or before."""
    if places.user:
        return {}
    names = {*allowed_now, *places.allowed, *([UNDER_WSL] if generation(Host()) else [])}
    texts = {Path(name).stem: text for name, text in in_folder("deploy/drop-ins").items()}
    return {places.drop_ins / f"wslgpud-{name}.conf": texts[name] for name in sorted(names) if name in texts}


def _check_configuration(new: Path, places: Places) -> None:
    try:
        output(new / "bin/wslgpud", "config", "check", "--config", places.configuration)
    except SourceError as error:
        raise ServiceError("fix the configuration first, nothing else was changed: {why}", why=str(error)) from error


def _start(new: Path, units: dict[Path, str], places: Places, changes: Changes) -> None:
    """Switch to a release, and roll back if it does not start."""
    before = places.running
    units_before = {path: path.read_text(encoding="utf-8") for path in units if path.is_file()}
    try:
        changed = _use(new, units, places, changes)
        if not (places.command.exists() or places.command.is_symlink()):
            changes.link(places.program / "bin/wslgpud", places.command)
        _run(places, changes, changed=changed)
    except (MessageError, OSError, KeyboardInterrupt) as error:
        last_words = systemctl.last_words(places)
        message = say("wslgpud does not start; see its log above")
        if before not in (None, new):
            systemctl.forget_failures(places, changes)
            _use(before, units_before, places, changes, obsolete=units.keys() - units_before.keys())
            if not succeeds(*places.systemctl("restart", *places.enabled_units)):
                raise NotStarted(say("neither the new version nor the previous one starts"), last_words) from error
            message = say("the new version does not start, see its log above; the previous one runs again")
        if not isinstance(error, (NoData, SourceError)):
            raise
        raise NotStarted(message, last_words) from error


def _run(places: Places, changes: Changes, *, changed: bool) -> None:
    """Have systemd start the daemon with the machine, and now; again if anything has changed."""
    if not systemctl.is_enabled(places):
        changes.run(*places.systemctl("enable", "--quiet", *places.enabled_units))
    if changed or not systemctl.is_active(places):
        systemctl.forget_failures(places, changes)
        changes.run(*places.systemctl("restart", *places.enabled_units))


def _wanted(places: Places, python: Path, extras: Collection[str]) -> Path:
    """Return the folder of the requested release: where this command runs from, if that is one."""
    here = Path(sys.prefix).resolve()
    its_own = here.parent == places.releases.resolve() and python == release.own_interpreter()
    if its_own and all(release.is_installed(extra) for extra in extras):
        return here
    installed = [extra for extra in extras if release.is_installed(extra)]
    return places.releases / release.name_of(release.needed(release.OURS, installed).values(), extras)


def _use(new: Path, units: dict[Path, str], places: Places, changes: Changes, obsolete: Collection[Path] = ()) -> bool:
    """Switch to a release: its units and, atomically, its program. Return whether anything changed."""
    changed = _put(units, places, changes, obsolete)
    if places.running == new:
        return changed
    changes.link(new, places.program)
    return True


def _put(units: dict[Path, str], places: Places, changes: Changes, obsolete: Collection[Path] = ()) -> bool:
    """Write units, remove others, and notify systemd; return whether anything changed."""
    changed = [changes.put(text, path) for path, text in units.items()]
    changes.remove(*obsolete)
    if any(changed) or obsolete:
        changes.run(*places.systemctl("daemon-reload"))
    return any(changed)


def _make_settings(program: Path, places: Places, changes: Changes) -> None:
    """Create the configuration, closed to all but root and the service, as it may hold secrets."""
    folder, file = places.settings, places.configuration
    if not places.user and not _is_for_service(folder, 0o750):
        changes.run("install", "-d", "-o", "root", "-g", ACCOUNT, "-m", "750", folder)
    if not file.exists():
        changes.run(program, "config", "init", file)
    if not places.user and not _is_for_service(file, 0o640):
        changes.run("chown", f"root:{ACCOUNT}", file)
        changes.run("chmod", "640", file)


def _is_for_service(path: Path, mode: int) -> bool:
    """Return whether a path is owned by root and readable for the service's group. Links are left alone."""
    if path.is_symlink():
        return True
    with suppress(OSError, KeyError):
        return (path.owner(), path.group(), path.stat().st_mode & 0o7777) == ("root", ACCOUNT, mode)
    return False


def _link_shared_files(new: Path, places: Places, changes: Changes) -> None:
    """Link manual pages and shell completion into the ``share`` folder next to the command."""
    files = [path.relative_to(new / "share") for path in sorted((new / "share").rglob("*wslgpud*")) if path.is_file()]
    wanted = {places.share / file: places.program / "share" / file for file in files}
    for link, target in wanted.items():
        if not (link.exists() or link.is_symlink()):
            changes.link(target, link)
    changes.remove(*(link for link in places.shared_links if link not in wanted))


def _tidy_up(new: Path, extras: Collection[str], places: Places, changes: Changes) -> None:
    if extras:
        changes.put("\n".join(extras) + "\n", places.extras)
    if places.releases.is_dir():
        changes.remove(*(path for path in sorted(places.releases.iterdir()) if path.is_dir() and path != new))
    if places.user and not systemctl.lingers():
        with suppress(SourceError, NoData):  # reported at the end
            changes.run("loginctl", "enable-linger")


def keeps_alive() -> bool:
    """Return whether Windows has the task that keeps this distribution running."""
    try:
        return interop.keep_alive(Host(), "status") == "present"
    except MessageError:
        return False


def uninstall(places: Places, changes: Changes, *, purge: bool) -> list[Path]:
    """Remove the service, and with ``purge`` data, configuration and accounts; return the paths kept.

    Raises ServiceError: it must be removed by other means, or systemd refuses.
    """
    if places.packaged:
        raise ServiceError(
            "the package wslgpud is installed: {command} removes it",
            command="'sudo apt purge wslgpud'" if purge else "'sudo apt remove wslgpud'",
        )
    try:
        _remove(places, changes, purge=purge)
    except MessageError as error:
        raise ServiceError("{why}; the removal is incomplete", why=error.message) from error
    return [path for path in (places.settings, places.data) if path.exists()]


def _remove(places: Places, changes: Changes, *, purge: bool) -> None:
    units = [places.units / name for name in in_folder(f"deploy/{places.kind}")]
    if systemctl.runs() and (places.units / "wslgpud.service").exists():
        changes.run(*places.systemctl("disable", "--quiet", "--now", *places.enabled_units))
    changes.remove(*units, *sorted(places.drop_ins.glob("wslgpud-*.conf")))
    if places.drop_ins.is_dir():
        changes.run("rmdir", "--ignore-fail-on-non-empty", places.drop_ins)
    if systemctl.runs():
        changes.run(*places.systemctl("daemon-reload"))
        systemctl.forget_failures(places, changes)
    if places.command.is_symlink() and places.command.readlink() == places.program / "bin/wslgpud":
        changes.remove(places.command)
    changes.remove(*places.shared_links)
    remove_windows_task(changes)
    if purge:
        changes.remove(places.settings, places.data)
        if not places.user:
            remove_accounts(changes)
    os.chdir("/")
    # Last, since this command itself may run from there.
    leftover = places.program.with_name(f"{places.program.name}.new")
    changes.remove(places.stress, places.stress_being_made, places.program, leftover, places.releases)


def remove_windows_task(changes: Changes) -> None:
    """Remove the task that keeps this distribution running, if there is one."""
    if generation(Host()):
        # Windows is unreachable; its task then fails to start a missing program, harmlessly
        with suppress(MessageError):
            changes.perform(
                "remove the task of Windows that keeps this distribution running, if there is one",
                lambda: interop.keep_alive(Host(), "remove"),
            )


def make_accounts(changes: Changes) -> None:
    """Create the accounts, and let the installing user read the history."""
    for account, home in _HOMES.items():
        if not account_exists(account):
            options = ("--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin")
            changes.run("useradd", *options, "--home-dir", home, account)
        for group in _GROUPS[account]:
            _join(changes, account, group)
    if (person := os.environ.get("SUDO_USER", "root")) != "root":
        _join(changes, person, ACCOUNT)


def remove_accounts(changes: Changes) -> None:
    for account in _HOMES:
        if account_exists(account):
            changes.run("userdel", account)  # refused while the account runs something
        if _members(account) is not None:  # userdel leaves a group that has other members
            changes.run("groupdel", account)


def account_exists(account: str) -> bool:
    with suppress(KeyError):
        return bool(pwd.getpwnam(account))
    return False


def _join(changes: Changes, account: str, group: str) -> None:
    members = _members(group)
    if members is None and group != ACCOUNT:  # a missing system group; ours is missing in a dry run
        return
    if account not in (members or ()):
        changes.run("usermod", "--append", "--groups", group, account)


def _members(group: str) -> list[str] | None:
    with suppress(KeyError):
        return grp.getgrnam(group).gr_mem
    return None


def configure_package() -> None:
    """Create accounts, permissions, the sandbox that this machine needs, and bytecode."""
    compile_packages()
    changes = Changes(dry=False)
    prepare(PACKAGED_PROGRAM, SYSTEM, changes)
    for path, text in drop_ins((), SYSTEM).items():
        changes.put(text, path)


def compile_packages() -> None:
    """Compile the package for the system's Python: only root can, else each start would do it again."""
    for folder in sys.path:
        if folder.startswith(f"{PACKAGE}/"):
            compileall.compile_dir(folder, quiet=1)


if __name__ == "__main__":  # a step of the Debian package besides unpacking, called by its scripts (``deploy/debian``)
    steps: dict[str, Callable[[], None]] = {
        "configure": configure_package,
        "compile": compile_packages,
        "remove": lambda: remove_windows_task(Changes(dry=False)),
    }
    try:
        steps[sys.argv[1]]()
    except MessageError as error:
        sys.exit(f"wslgpud: {error}")
