"""A memory cgroup with a limit, in which a test can really run out of memory."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def box(limit_bytes: int) -> Iterator[list[str]]:
    """Yield the words to put before a command that is to run inside; skips where no group can be made."""
    old = (ROOT / "memory/memory.limit_in_bytes").exists()
    base = ROOT / "memory" if old else ROOT
    folder = base / f"wslgpud-test-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
        if old:
            (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
            with contextlib.suppress(OSError):  # no accounting of swap here
                (folder / "memory.memsw.limit_in_bytes").write_text(str(limit_bytes))
        else:
            (folder / "memory.max").write_text(str(limit_bytes))
            (folder / "memory.swap.max").write_text("0")
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        yield ["sh", "-c", f'echo $$ >{folder}/cgroup.procs && exec "$@"', "sh"]
    finally:
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        while (folder / "cgroup.procs").read_text():
            pass
        folder.rmdir()
