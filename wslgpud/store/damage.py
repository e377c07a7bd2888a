"""What cannot be read of a row is a gap: SQLite has no checksums, and one bit must not cost all the rest."""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

#: what taking a row apart ends in when it is not as it was written
DAMAGE = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, zlib.error,
    struct.error,
)  # fmt: skip


@contextmanager
def gap(what: str, *names: object) -> Iterator[None]:
    """Tell that ``what`` (with ``names`` in it) is damaged, and go on without it."""
    try:
        yield
    except DAMAGE as error:
        log.warning("%s: damaged: %s", what % names, error)
