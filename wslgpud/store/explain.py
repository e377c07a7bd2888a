"""What the database's driver says, with the remedy."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from wslgpud.masking import parts, without
from wslgpud.store.engine import is_url, shown
from wslgpud.store.errors import LockedError, NotADatabaseError, StoreError, UnwritableError
from wslgpud.words import known, say

_REMEDIES = (
    ("full", say("free some space or name another folder in store.path")),
    ("interrupted", say("looking into it takes too long; it is damaged, or made to be so")),
)


@contextmanager
def explained(target: str) -> Iterator[None]:
    """Turn the driver's errors, wrapped by SQLAlchemy or not, into a StoreError with the remedy."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        raise explain(error, target) from error


def explain(error: DBAPIError | sqlite3.Error, target: str) -> StoreError:
    """Return ``error`` as a StoreError of the right kind."""
    # PostgreSQL explains itself over several lines; whoever reads a log or a terminal is promised one.
    said = error.orig if isinstance(error, DBAPIError) else error
    text, name = " ".join(str(said).split()), shown(target)
    if is_url(target):
        text = without(text, parts(target))
    if "not a database" in text:
        return NotADatabaseError(
            say("{name}: is not a database; move the file away or name another one", name=name)
        )
    if "malformed" in text:
        return StoreError(
            say(
                "{name}: is damaged ({text}); the daemon sets it aside and saves what can be read",
                name=name,
                text=known(text),
            )
        )
    if "locked" in text:
        return LockedError(
            say("{name}: held by another process ({text}); close that one", name=name, text=known(text))
        )
    if "readonly" in text or "unable to open" in text:
        remedy = say("check the owner of the file and of its folder")
        if _forbidden(target):
            remedy = say(
                "you may not read it: use sudo, or log in anew if you have just joined the group wslgpud"
            )
        return UnwritableError(say("{name}: {text}; {remedy}", name=name, text=known(text), remedy=remedy))
    for word, remedy in _REMEDIES:
        if word in text:
            return StoreError(say("{name}: {text}; {remedy}", name=name, text=known(text), remedy=remedy))
    return StoreError(say("{name}: {text}", name=name, text=known(text)))


def _forbidden(target: str) -> bool:
    """Tell whether the file is there, or may be, and is not ours to read."""
    try:
        Path(target).stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return not os.access(target, os.R_OK)
