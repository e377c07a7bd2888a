"""Removing the service."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from wslgpud.host import Host, NoData, SourceError
from wslgpud.probes import interop
from wslgpud.service import accounts, systemctl
from wslgpud.service.changes import Changes, ServiceError
from wslgpud.service.places import Places
from wslgpud.shipped_files import in_folder
from wslgpud.sources.wsl import generation
from wslgpud.words import MessageError


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
    except (NoData, SourceError) as error:
        raise ServiceError("{why}; the removal is incomplete", why=error.message) from error
    return [path for path in (places.settings, places.data) if path.exists()]


def _remove(places: Places, changes: Changes, *, purge: bool) -> None:
    units = [places.units / name for name in in_folder(f"deploy/{places.kind}")]
    if systemctl.runs() and (places.units / "wslgpud.service").exists():
        changes.run(*systemctl.command(places, "disable", "--quiet", "--now", *places.enabled_units))
    changes.remove(*units, *sorted(places.drop_ins.glob("wslgpud-*.conf")))
    if places.drop_ins.is_dir():
        changes.run("rmdir", "--ignore-fail-on-non-empty", places.drop_ins)
    if systemctl.runs():
        changes.run(*systemctl.command(places, "daemon-reload"))
        systemctl.forget_failures(places, changes)
    if places.command.is_symlink() and places.command.readlink() == places.program / "bin/wslgpud":
        changes.remove(places.command)
    changes.remove(*places.shared_links)
    remove_windows_task(changes)
    if purge:
        changes.remove(places.settings, places.data)
        if not places.user:
            accounts.remove(changes)
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
