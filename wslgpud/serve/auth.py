"""Basic authentication against bcrypt hashes, without paying for bcrypt at each scrape."""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping

CHALLENGE = {"WWW-Authenticate": 'Basic realm="wslgpud", charset="UTF-8"'}

#: bcrypt looks at no more; Go's implementation cuts here too, Python's refuses what is longer.
_BCRYPT_BYTES = 72
_REMEMBERED_MAX = 1000


def parse_basic(header: str) -> tuple[str, bytes] | None:
    """Return user and password of an Authorization header; None when it holds none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode(), password[:_BCRYPT_BYTES]) if colon else None
    except (binascii.Error, ValueError):
        return None


class Passwords:
    """Checks passwords: bcrypt once, afterwards by a keyed digest of what was right."""

    def __init__(self, run: Callable[[Callable[[], bool], str], Awaitable[bool]]) -> None:
        """Use ``run`` for checks, each a tenth of a second of one core; its second argument is the client."""
        self._run = run
        self._key = secrets.token_bytes(32)
        self._right: set[bytes] = set()
        self._checking: dict[bytes, asyncio.Future[bool]] = {}

    async def accept(self, users: Mapping[str, str], header: str, client: str = "") -> bool:
        """Tell whether ``header`` (sent by ``client``) names one of ``users`` with its password.

        An unknown user costs the same as a wrong password, or its absence could be measured. The digest
        covers the hash, so a changed password is asked for at once.
        """
        given = parse_basic(header)
        if given is None:
            return False
        user, password = given
        known = user in users
        wanted = users[user] if known else max(users.values(), key=lambda hashed: int(hashed.split("$")[2]))  # its cost
        material = b"\0".join((user.encode(), wanted.encode(), password))
        digest = hmac.digest(self._key, material, hashlib.sha256)
        if digest in self._right:
            return True
        if not await self._once(digest, functools.partial(_matches, password, wanted), client) or not known:
            return False
        if len(self._right) >= _REMEMBERED_MAX:
            self._right.clear()
        self._right.add(digest)
        return True

    async def _once(self, digest: bytes, check: Callable[[], bool], client: str) -> bool:
        """Run ``check`` once for all who wait for the same answer: scrapers begin together."""
        if digest not in self._checking:
            task = asyncio.ensure_future(self._run(check, client))
            self._checking[digest] = task
            task.add_done_callback(lambda _: self._checking.pop(digest))
        return await asyncio.shield(self._checking[digest])


def _matches(password: bytes, hashed: str) -> bool:
    import bcrypt  # only where passwords are configured

    try:
        return bcrypt.checkpw(password, hashed.encode())
    except ValueError:  # bcrypt takes no NUL in a password, so no user has one
        return False
