"""What can be wrong with the database, each with the file and the remedy in its one line."""

from __future__ import annotations


class StoreError(Exception):
    """The history cannot be opened or used; the text names the file and what to do."""


class NewerSchemaError(StoreError):
    """A newer wslgpud wrote this file; an older one must not touch it."""


class NotADatabaseError(StoreError):
    """The file is something else than a database of wslgpud."""


class ForeignDatabaseError(NotADatabaseError):
    """The file is a sound database of another program."""


class UnwritableError(StoreError):
    """The folder or the file cannot be written."""


class UnkeptError(StoreError):
    """The disk has failed to keep what it had taken."""


class MissingDriverError(StoreError):
    """The address names a database for which no driver is installed."""


class LockedError(StoreError):
    """Another process holds the database."""


class UnsuitableFolderError(StoreError):
    """The folder's file system cannot carry a database that is written while others read."""
