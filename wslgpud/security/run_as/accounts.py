"""This machine's accounts: which one a program runs as by ``rule.py``, and who could replace it."""

from __future__ import annotations

import contextlib
import grp
import itertools
import os
import pwd
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from wslgpud.security.run_as.evidence import survey, way
from wslgpud.security.run_as.rule import NOBODY, Account, Component, Refused, owner, unreachable
from wslgpud.words import MessageLike, cause, failure, say

#: accounts for programs without a single owner; the first that exists is used
WITHOUT_RIGHTS = ("wslgpud-stress", "nobody")
#: what root's PATH is in a unit of systemd's; that of a shell may name a user's folders
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DEVICES = ("nvidia*", "nvidia-caps/*", "dri/render*", "dxg")


def account_for(python: Path) -> Account | None:
    """Return the account to start a Python as; None for our own, which is not root.

    Raises:
        OSError: it is not there.
        Refused: root must not start it, or the account that it would run as cannot read it.
    """
    if os.geteuid() != 0:
        return None
    chain = survey(python).chain
    account = account_of(owner(chain, known_members(chain)))
    if path := unreachable(chain, account):
        said = say(
            "{account}, the account that root runs it as, cannot read {path}: make an environment elsewhere,"
            " such as /opt/torch, and name its Python as stress.python",
            path=path,
            account=account.name,
        )
        raise Refused(said)
    return account


def account_of(uid: int | None) -> Account:
    """Return an ordinary user's account, or for None the one without rights.

    Of its groups those are kept that may open a GPU; root's group never is.
    """
    for name in WITHOUT_RIGHTS if uid is None else ():
        with contextlib.suppress(KeyError):
            if uid := pwd.getpwnam(name).pw_uid:
                break
    uid = uid or NOBODY
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(f"user {uid}", uid, NOBODY)
    allowed = gpu_groups() - {0}
    groups = [gid for gid in os.getgrouplist(entry.pw_name, entry.pw_gid) if gid in allowed]
    return Account(entry.pw_name, uid, entry.pw_gid or NOBODY, tuple(groups), entry.pw_dir)


def gpu_groups() -> set[int]:
    """Return the groups that may open a GPU's device files, where not everybody may."""
    found = set()
    for path in itertools.chain.from_iterable(map(Path("/dev").glob, _DEVICES)):
        with contextlib.suppress(OSError):
            facts = path.stat()
            if stat.S_ISCHR(facts.st_mode) and facts.st_mode & 0o66 == 0o60:
                found.add(facts.st_gid)
    return found


def known_members(chain: Iterable[Component]) -> dict[int, frozenset[int]]:
    """Return the uids in each group that may write something in a chain, if known."""
    writing = {component.gid for component in chain if component.mode & stat.S_IWGRP}
    return {gid: known for gid in writing if (known := members(gid)) is not None}


def members(gid: int) -> frozenset[int] | None:
    """Return the uids in a group by this machine's own files; None for an unknown group."""
    try:
        names = grp.getgrgid(gid).gr_mem
    except KeyError:
        return None
    users = pwd.getpwall()
    named = {entry.pw_uid for entry in users if entry.pw_name in names}
    if len(named) < len({*names}):
        return None  # of another directory: who that is can change
    return frozenset(named | {entry.pw_uid for entry in users if entry.pw_gid == gid})


def environment(account: Account | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a program: ours where it runs as ourselves, else nothing of root's."""
    if account is None:
        return dict(environ)
    return {"PATH": _PATH, "HOME": account.home, "USER": account.name, "LOGNAME": account.name}


def replaceable(path: Path) -> MessageLike:
    """Return who else could replace a file (``/home/bob belongs to uid 1001``); empty when nobody could.

    Only root and we ourselves may own, or be able to write, the file and each folder and link on its path. A
    folder with the sticky bit (/tmp) keeps others from replacing what is not theirs.
    """
    try:
        chain = way(path)
        for component in chain:
            if component.uid not in (0, os.geteuid()):
                return say("{path} belongs to uid {uid}", path=str(component.path), uid=component.uid)
        owner(chain, known_members(chain))
    except OSError as error:
        return say("{path}: {why}", path=str(error.filename), why=failure(error))
    except Refused as refused:
        return cause(refused)
    return ""


def program(name: str, path: str | None = None) -> str | None:
    """Return where a program lies: the first on ``path`` (else ``PATH``) that only we or root can replace.

    A name with a slash is taken as it stands; ``replaceable`` says whether it is to be run.
    """
    if os.sep in name:
        return shutil.which(name)
    folders = (path if path is not None else os.environ.get("PATH", os.defpath)).split(os.pathsep)
    found = (shutil.which(name, path=folder) for folder in folders if folder)
    return next((place for place in found if place is not None and not replaceable(Path(place))), None)
