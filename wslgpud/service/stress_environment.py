"""An environment with torch for the nightly test of the GPU's memory, apart from the daemon's, which stays small.

The worker only reads it: root's is run by the account ``wslgpud-stress`` (wslgpud/stress/README.md).
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

from wslgpud.host import NoData, SourceError
from wslgpud.service import release
from wslgpud.service.changes import Changes, ServiceError, output
from wslgpud.service.places import Places
from wslgpud.words import cause, say
from wslgpud.words.units import size

EXTRA: Final = "stress"
LOCKED = release.EXTRAS_FOLDER / f"{EXTRA}.txt"
#: on the disk, of what was downloaded: measured with torch 2.13
_UNPACKED_RATIO = 2.0
_DOWNLOADS = re.compile(r"^# downloads (\d+) bytes", re.MULTILINE)


def put(python: Path, places: Places, changes: Changes, *, asked: bool) -> None:
    """See to it that the environment works where there is one, and is there as this version locked it if ``asked`` for.

    An upgrade leaves one that works as it is: nobody has asked for gigabytes then.

    Raises ServiceError: it cannot be made; the one before, if there is one, stays.
    """
    made_of = places.stress / LOCKED.name
    works = (places.stress / "bin/python3").exists()  # not if that led to a Python which has been removed
    if asked:
        works = works and made_of.read_text(encoding="utf-8") == LOCKED.read_text(encoding="utf-8")
    if works or not (asked or places.stress.exists()):
        return
    told = f"make {places.stress}: an environment of {python} with torch (downloads {size(download_bytes())})"
    changes.does(told, lambda: _make(python, places, changes))


def download_bytes() -> int:
    """Return how much the lock file says that a PC downloads."""
    found = _DOWNLOADS.search(LOCKED.read_text(encoding="utf-8"))
    return int(found[1]) if found else 0


def _make(python: Path, places: Places, changes: Changes) -> None:
    need_bytes, free_bytes = download_bytes(), shutil.disk_usage(places.stress.parent).free
    changes.tell(say("torch for the nightly test: fetching {size_bytes}", size_bytes=need_bytes))
    need_bytes = int(need_bytes * (1 + _UNPACKED_RATIO))
    if free_bytes < need_bytes:
        raise ServiceError(
            "{folder} needs {need_bytes}, and {free_bytes} are free there",
            folder=str(places.stress),
            need_bytes=need_bytes,
            free_bytes=free_bytes,
        )
    new = places.stress_being_made
    shutil.rmtree(new, ignore_errors=True)
    try:
        output(python, "-I", "-m", "venv", "--without-pip", new)
        release.fetch(new, [LOCKED], changes.tell)
        shutil.copy(LOCKED, new)
        shutil.rmtree(places.stress, ignore_errors=True)
        new.rename(places.stress)
    except (NoData, SourceError, OSError) as error:
        raise ServiceError("{release} cannot be made: {why}", release=str(places.stress), why=cause(error)) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
