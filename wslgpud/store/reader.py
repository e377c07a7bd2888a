"""Reading history, from this process or another, while the daemon writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from wslgpud.store import engine as engines
from wslgpud.store import migrations, untrusted
from wslgpud.store.errors import explained
from wslgpud.store.history import History


@final
class Reader(History):
    """Connections that only read; usable from several threads."""

    def __init__(self, target: str, host: str = "") -> None:
        """Look into the database at ``target`` (a path or a URL).

        With ``host`` of what has no series (processes, events, incidents, stress runs) only that machine's:
        many may write into one database, and their pids and resources have the same names.

        Raises:
            StoreError: there is none, a newer wslgpud wrote it, or it cannot be read.
        """
        self._target, self.host = target, host
        #: the file, None for a database server
        self.path = engines.sqlite_path(target)
        #: device and inode of the file that is open
        self.identity: tuple[int, int] | None = None
        self._engine: Engine = untrusted.reader_engine(target)
        try:
            with self.connected() as connection:
                migrations.refuse_newer(migrations.applied(connection), engines.shown(target))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the connections go."""
        self._engine.dispose()

    def check(self) -> list[str]:
        """Look through the whole file; return what is wrong with it, empty when nothing is."""
        if self.path is None:
            return []
        self._follow()
        try:
            with self._engine.begin() as connection:
                rows = connection.exec_driver_sql("PRAGMA quick_check(10)").scalars().all()
        except DBAPIError as error:
            return [str(error.orig)]
        return [row for row in rows if row != "ok"]

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """See History."""
        self._follow()
        with explained(self._target), self._engine.begin() as connection:
            yield connection

    def _follow(self) -> None:
        if self.path is None:
            return
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return
        if (found.st_dev, found.st_ino) != self.identity:
            if self.identity is not None:
                self._engine.dispose()
                self._engine = untrusted.reader_engine(self._target)
            self.identity = (found.st_dev, found.st_ino)
