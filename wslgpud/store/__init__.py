"""The history of samples, changes and alerts, in one file; the home of SQLAlchemy."""

from wslgpud.store.engines import shown, sqlite_path
from wslgpud.store.errors import LockedError, StoreError
from wslgpud.store.outbox import Outbox
from wslgpud.store.reader import Reader
from wslgpud.store.records import Bucket, DaemonRun, Delivery, ProcessPoint, SeriesRef
from wslgpud.store.store import Store
from wslgpud.store.store_metrics import StoreStats

__all__ = [
    "Bucket",
    "DaemonRun",
    "Delivery",
    "LockedError",
    "Outbox",
    "ProcessPoint",
    "Reader",
    "SeriesRef",
    "Store",
    "StoreError",
    "StoreStats",
    "shown",
    "sqlite_path",
]
