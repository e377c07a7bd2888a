"""The accounts of the system's service, and who belongs to their groups."""

from __future__ import annotations

import grp
import os
import pwd
from contextlib import suppress

from wslgpud.service.changes import Changes
from wslgpud.service.places import SYSTEM
from wslgpud.sources.identity import ACCOUNT

#: whom the stress test runs as where nobody in particular owns the Python: it owns nothing, here or anywhere
STRESS_ACCOUNT = "wslgpud-stress"
#: where the journal or the GPU is not for everybody, it is for these
_GROUPS = {ACCOUNT: ("systemd-journal", "video", "render"), STRESS_ACCOUNT: ("video", "render")}
_HOMES = {ACCOUNT: str(SYSTEM.data), STRESS_ACCOUNT: "/nonexistent"}


def make(changes: Changes) -> None:
    """Make the accounts, and let who installs the service read its history."""
    for account, home in _HOMES.items():
        if not exists(account):
            options = ("--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin")
            changes.run("useradd", *options, "--home-dir", home, account)
        for group in _GROUPS[account]:
            _join(changes, account, group)
    if (person := os.environ.get("SUDO_USER", "root")) != "root":
        _join(changes, person, ACCOUNT)


def remove(changes: Changes) -> None:
    if exists(ACCOUNT):
        changes.run("groupdel", "-f", ACCOUNT)  # with who installed it in it
        changes.run("userdel", ACCOUNT)
    if exists(STRESS_ACCOUNT):
        changes.run("userdel", STRESS_ACCOUNT)


def exists(account: str) -> bool:
    with suppress(KeyError):
        return bool(pwd.getpwnam(account))
    return False


def _join(changes: Changes, account: str, group: str) -> None:
    try:
        members = grp.getgrnam(group).gr_mem
    except KeyError:  # a group of the system's that is not there, or ours in a dry run
        if group != ACCOUNT:
            return
        members = []
    if account not in members:
        changes.run("usermod", "--append", "--groups", group, account)
