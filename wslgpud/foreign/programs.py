"""Which programs may be started as ourselves: those that nobody but root and we can replace."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from wslgpud.foreign.accounts import known_members
from wslgpud.foreign.rule import Refused, owner
from wslgpud.foreign.survey import way
from wslgpud.words import Said, cause, failure, say


def replaceable(path: Path) -> Said:
    """Return who else could replace a file (``/home/bob belongs to uid 1001``); empty when nobody could.

    Only root and we ourselves may own, or be able to write, the file and each folder and link on its path. A
    folder with the sticky bit (/tmp) keeps others from replacing what is not theirs.
    """
    try:
        chain = way(path)
        for component in chain:
            if component.uid not in (0, os.geteuid()):
                return say("{path} belongs to uid {uid}", path=str(component.path), uid=component.uid)
        owner(chain, known_members(chain))
    except OSError as error:
        return say("{path}: {why}", path=str(error.filename), why=failure(error))
    except Refused as refused:
        return cause(refused)
    return ""


def program(name: str, path: str | None = None) -> str | None:
    """Return where a program lies: the first on ``path`` (else ``PATH``) that only we or root can replace.

    A name with a slash is taken as it stands; ``replaceable`` says whether it is to be run.
    """
    if os.sep in name:
        return shutil.which(name)
    folders = (path if path is not None else os.environ.get("PATH", os.defpath)).split(os.pathsep)
    found = (shutil.which(name, path=folder) for folder in folders if folder)
    return next((place for place in found if place is not None and not replaceable(Path(place))), None)
