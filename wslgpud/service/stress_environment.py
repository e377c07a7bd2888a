"""An environment with torch for the nightly GPU memory test, separate from the daemon's, which stays small.

The worker only reads it: for root it runs as the account ``wslgpud-stress`` (wslgpud/stress/README.md).
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
#: ratio of disk space to download size, measured with torch 2.13
_UNPACKED_RATIO = 2.0
_DOWNLOADS = re.compile(r"^# downloads (\d+) bytes", re.MULTILINE)


def put(python: Path, places: Places, changes: Changes, *, asked: bool) -> None:
    """Repair the environment if there is one; if ``asked`` for, create it or update it to this version's lock file.

    An upgrade leaves a working one unchanged: it must not download gigabytes unasked.

    Raises ServiceError: it cannot be created; the previous one, if any, stays.
    """
    made_of = places.stress / LOCKED.name
    works = (places.stress / "bin/python3").exists()  # False if the link's target, a Python, has been removed
    if asked:
        works = works and made_of.is_file() and made_of.read_bytes() == LOCKED.read_bytes()
    if works or not (asked or places.stress.exists()):
        return
    description = f"make {places.stress}: an environment of {python} with torch (downloads {size(download_bytes())})"
    changes.perform(description, lambda: _make(python, places, changes))


def download_bytes() -> int:
    """Return the download size for a PC according to the lock file."""
    match = _DOWNLOADS.search(LOCKED.read_text(encoding="utf-8"))
    return int(match[1]) if match else 0


def _make(python: Path, places: Places, changes: Changes) -> None:
    need_bytes, free_bytes = download_bytes(), shutil.disk_usage(places.stress.parent).free
    changes.tell(say("torch for the nightly test: downloading {size_bytes}", size_bytes=need_bytes))
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
