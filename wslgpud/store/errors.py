"""Errors of the database, each naming the file and the remedy in one line."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from wslgpud.security.redaction import address, parts, without
from wslgpud.words import MessageError, MessageLike, cause, known, say

log = logging.getLogger(__name__)

#: exceptions from decoding a damaged row
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, zlib.error, struct.error)

#: primary result codes of SQLite: https://www.sqlite.org/rescode.html
BUSY, LOCKED, READ_ONLY, INTERRUPT, IO_ERROR = 5, 6, 8, 9, 10
CORRUPT, FULL, CANNOT_OPEN, NOT_A_DATABASE = 11, 13, 14, 26
#: part of SQLite's own text -> code
_CODES = {
    "not a database": NOT_A_DATABASE,
    "malformed": CORRUPT,
    "locked": BUSY,
    "readonly": READ_ONLY,
    "unable to open": CANNOT_OPEN,
    "interrupted": INTERRUPT,
    "full": FULL,
    "I/O error": IO_ERROR,
}

_REMEDIES = {
    errno.EDQUOT: say("delete files of this user, or raise its quota"),
    errno.ENOSPC: say("free some space or name another folder in store.path"),
    errno.EROFS: say("mount the file system writable again; the kernel log (dmesg) shows why it is not"),
    errno.EIO: say("the disk fails: see the kernel log (dmesg), and name another folder in store.path"),
}


class StoreError(MessageError):
    """The history cannot be opened or used; the message names the file and the remedy."""


class NewerSchemaError(StoreError):
    """A newer wslgpud wrote this file; an older one must not touch it."""


class NotADatabaseError(StoreError):
    """The file is something else than a database of wslgpud."""


class ForeignDatabaseError(NotADatabaseError):
    """The file is a sound database of another program."""


class UnwritableError(StoreError):
    """The folder or the file cannot be written, or not with concurrent readers."""


class LockedError(StoreError):
    """Another process holds the database."""


class DamagedError(StoreError):
    """The file is damaged; its readable rows can be recovered."""


def code_of(error: BaseException | None) -> int:
    """Return the result code of SQLite behind an error, 0 if there is none.

    An error without one, any with Python 3.10, is recognized by SQLite's own text.
    """
    if isinstance(error, StoreError):
        return code_of(error.__cause__)
    driver_error = error.orig if isinstance(error, DBAPIError) else error
    if not isinstance(driver_error, sqlite3.Error):
        return 0
    code: int | None = getattr(driver_error, "sqlite_errorcode", None)
    if code is None:
        return next((code for text, code in _CODES.items() if text in str(driver_error)), 0)
    return code & 0xFF  # without what extended codes add


def is_damage(error: BaseException) -> bool:
    return isinstance(error, DamagedError) or code_of(error) in (CORRUPT, NOT_A_DATABASE)


@contextmanager
def gap(what: str, *names: object) -> Iterator[None]:
    """Log once that ``what`` is damaged, and continue: SQLite has no checksums, and one bit must not cost the rest."""
    try:
        yield
    except DAMAGE as error:
        _log_once(what % names, str(error))


@lru_cache(maxsize=1024)
def _log_once(what: str, why: str) -> None:
    log.warning("%s: damaged: %s", what, why)


@contextmanager
def explained(target: str) -> Iterator[None]:
    """Turn the driver's errors, wrapped by SQLAlchemy or not, into a StoreError with the remedy."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        raise explain(error, target) from error


def explain(error: DBAPIError | sqlite3.Error, target: str) -> StoreError:
    # PostgreSQL's messages have several lines; ours have one.
    driver_error = error.orig if isinstance(error, DBAPIError) else error
    text, name = " ".join(str(driver_error).split()), address(target, path=True)
    if "://" in target:
        text = without(text, parts(target))
    code = code_of(error)
    if code == NOT_A_DATABASE:
        return NotADatabaseError("{name}: is not a database; move the file away or name another one", name=name)
    if code == CORRUPT:
        return DamagedError(
            "{name}: is damaged ({text}); the daemon sets it aside and recovers what is readable",
            name=name,
            text=known(text),
        )
    if code in (BUSY, LOCKED):
        return LockedError("{name}: held by another process ({text}); close that one", name=name, text=known(text))
    kind, remedy = StoreError, say("free some space or name another folder in store.path")
    if code in (READ_ONLY, CANNOT_OPEN):
        kind, remedy = UnwritableError, say("check the owner of the file and of its folder")
        if _forbidden(target):
            remedy = say("you may not read it: use sudo, or log in again if you have just joined the group wslgpud")
    elif code == INTERRUPT:
        remedy = say("reading it takes too long; it is damaged, or malicious")
    elif code != FULL:
        return StoreError("{name}: {text}", name=name, text=known(text))
    return kind(say("{name}: {text}; {remedy}", name=name, text=known(text), remedy=remedy))


def _forbidden(target: str) -> bool:
    try:
        Path(target).stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return not os.access(target, os.R_OK)


def refusal(lock: Path) -> tuple[MessageLike, MessageLike]:
    """Return why writing beside a database fails, tried with its empty ``lock`` file, and the remedy, as far as known.

    SQLite reports an exhausted quota as a "disk I/O error", like a broken disk.
    """
    try:
        descriptor = os.open(lock, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.pwrite(descriptor, bytes(4096), 0)
            os.fsync(descriptor)
        finally:
            os.ftruncate(descriptor, 0)
            os.close(descriptor)
    except OSError as error:
        return cause(error), _REMEDIES.get(error.errno or 0, "")
    return "", ""
