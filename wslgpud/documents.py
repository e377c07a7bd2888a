"""Files and JSON of programs and places that somebody may have spoiled."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], *, follow: bool = False) -> Iterator[int]:
    """Open a file in a folder to which everybody may write; yield its descriptor.

    Args:
        path: the file.
        follow: it may be a link.

    Raises:
        OSError: it cannot be read, or is a link (into somebody's home) or a pipe (that nobody writes to).
    """
    links = 0 if follow else os.O_NOFOLLOW
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | links)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a plain file", str(path))
        yield descriptor
    finally:
        os.close(descriptor)


def contents(path: str | os.PathLike[str], most_bytes: int = 1 << 20, *, follow: bool = False) -> bytes:
    """Return all of a small file.

    Raises:
        OSError: it cannot be read, is no plain file or, unless ``follow``, a link, or is larger.
    """
    with opened(path, follow=follow) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes} bytes", str(path))
    return data


@contextlib.contextmanager
def folder(path: Path) -> Iterator[Path]:
    """Make and open a folder in one that somebody else owns; yield a path that leads to this very one.

    Raises:
        OSError: it cannot be made, or a link lies there, which would lead what is written somewhere else.
    """
    owner = path.parent.stat()
    with contextlib.suppress(FileExistsError):
        path.mkdir()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        if os.geteuid() == 0:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)  # who is to take things out of it
        yield Path("/proc/self/fd", str(descriptor))
    finally:
        os.close(descriptor)


def put(path: Path, text: str, *, mode: int = 0o600, synced: bool = False) -> None:
    """Replace a file in one step, so that nobody ever reads half of it.

    Until then it has a name that cannot be foretold: where everybody may write, a link could lie there.

    Args:
        path: the file.
        text: all of it.
        mode: who may read and write it, whatever the umask.
        synced: return only when it is on disk.

    Raises:
        OSError: it cannot be written; what was there is then as it was.
    """
    descriptor, name = tempfile.mkstemp(".part", f".{path.stem}-", path.parent)
    part = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, mode)
            file.write(text)
            if synced:
                file.flush()
                os.fsync(descriptor)
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error tells more
            part.unlink()
        raise


def parsed(text: str | bytes) -> dict[str, Any]:
    """Return the object in a JSON text.

    Raises:
        ValueError: it holds none; also where it nests deeper than can be read (json raises RecursionError).
    """
    try:
        document = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one error for all that is wrong with a text
    return document
