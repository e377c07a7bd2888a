"""Power cuts are made up of writes that could have reached the disk, and no others."""

from __future__ import annotations

import random
import struct
from pathlib import Path

from .log_writes import cuts

FLUSH, FUA, MARK = 1, 2, 8
DATA, COMMIT, NEXT = range(3)


def a_log(folder: Path, *entries: tuple[int, int, bytes]) -> Path:
    """Write a log as the kernel does: (sector, flags, data of a sector) each."""
    log = folder / "log"
    blocks = [struct.pack("<QQQI", 0x6A736677736872, 1, len(entries), 512).ljust(512, b"\0")]
    for sector, flags, data in entries:
        sectors, length = (0, len(data)) if flags & MARK or not data else (1, 0)
        head = struct.pack("<QQQQ", sector, sectors, flags, length) + data * bool(flags & MARK)
        blocks += [head.ljust(512, b"\0"), data.ljust(512, b"\0") if sectors else b""]
    log.write_bytes(b"".join(blocks))
    return log


def test_no_disk_image_has_later_writes_without_the_forced_one(tmp_path: Path) -> None:
    log = a_log(
        tmp_path,
        (0, MARK, b"begin"),
        (DATA, 0, b"data"),
        (0, FLUSH, b""),
        (COMMIT, FUA, b"commit"),
        (NEXT, 0, b"next"),
        (0, FLUSH, b""),
        (0, MARK, b"end"),
    )
    seen = set()
    for seed in range(100):
        for cut in cuts(log, 3 * 512, 7, random.Random(seed), after="begin"):
            seen.add(tuple(cut.disk[512 * place] > 0 for place in (DATA, COMMIT, NEXT)))

    assert seen == {(False, False, False), (True, False, False), (True, True, False), (True, True, True)}
