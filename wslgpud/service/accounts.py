"""The accounts of the system service, and the members of their groups."""

from __future__ import annotations

import grp
import os
import pwd
from contextlib import suppress

from wslgpud.service.changes import Changes
from wslgpud.service.places import SYSTEM
from wslgpud.sources.procfs import ACCOUNT

#: account of the stress test for a Python without a single owner: it owns nothing anywhere
STRESS_ACCOUNT = "wslgpud-stress"
#: groups with access to the journal and the GPU, where it is restricted
_GROUPS = {ACCOUNT: ("systemd-journal", "video", "render"), STRESS_ACCOUNT: ("video", "render")}
_HOMES = {ACCOUNT: str(SYSTEM.data), STRESS_ACCOUNT: "/nonexistent"}


def make(changes: Changes) -> None:
    """Create the accounts, and let the installing user read the history."""
    for account, home in _HOMES.items():
        if not exists(account):
            options = ("--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin")
            changes.run("useradd", *options, "--home-dir", home, account)
        for group in _GROUPS[account]:
            _join(changes, account, group)
    if (person := os.environ.get("SUDO_USER", "root")) != "root":
        _join(changes, person, ACCOUNT)


def remove(changes: Changes) -> None:
    for account in _HOMES:
        if exists(account):
            changes.run("userdel", account)  # refused while the account runs something
        if _members(account) is not None:  # userdel leaves a group that has other members
            changes.run("groupdel", account)


def exists(account: str) -> bool:
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
