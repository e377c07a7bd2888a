"""History: what every tick knew, what changed and was alerted, in one file; the home of SQLAlchemy."""

from wslgpud.store.engine import check_state_folder, shown, sqlite_path
from wslgpud.store.errors import (
    LockedError,
    NewerSchemaError,
    NotADatabaseError,
    StoreError,
    UnsuitableFolderError,
    UnwritableError,
)
from wslgpud.store.reader import Reader
from wslgpud.store.records import Bucket, DaemonRun, Delivery, Point, ProcessPoint, SeriesRef
from wslgpud.store.store import Store
from wslgpud.store.store_metrics import StoreStats

__all__ = [
    "Bucket",
    "DaemonRun",
    "Delivery",
    "LockedError",
    "NewerSchemaError",
    "NotADatabaseError",
    "Point",
    "ProcessPoint",
    "Reader",
    "SeriesRef",
    "Store",
    "StoreError",
    "StoreStats",
    "UnsuitableFolderError",
    "UnwritableError",
    "check_state_folder",
    "shown",
    "sqlite_path",
]
