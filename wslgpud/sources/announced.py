"""What commands under ``wslgpud guard`` came to before, as their guards announce it while they run.

A guard runs as its user and the daemon as its own; between them lies a small file in a folder where
everybody may write. The guard holds it locked as long as it lives, so that nothing is left to believe when it
was killed. Whoever can write there can announce nonsense, which costs a false warning; hence all is bounded.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from itertools import islice

from wslgpud import documents
from wslgpud.host import Host, NoData, SourceError
from wslgpud.masking import named
from wslgpud.model import Expected

#: The first that exists and can be written to is where a guard announces; /tmp is another for each service.
PLACES = ("/run/lock", "/dev/shm")  # noqa: S108 - shared on purpose
PREFIX, SUFFIX = "wslgpud-guard-", ".json"
MOST_BYTES, MOST_FILES, MOST_PEAKS, MOST_PIDS, MOST_CHARACTERS = 1 << 14, 32, 16, 1024, 80
#: more than any machine has; beyond it sums would be nonsense
_MOST = 1 << 50


def expected(host: Host) -> tuple[Expected, ...]:
    """Return what the commands that run under a guard are known to come to; of recordings nothing."""
    if host.recorded:
        return ()
    texts = (content for path in _files(host) if (content := _locked_text(host.path(path))))
    return tuple(peak for content in islice(texts, MOST_FILES) for peak in _parsed(content))


def text(who: str, peaks: Mapping[str, int], used: Mapping[str, int], pids: tuple[int, ...]) -> bytes:
    """Return an announcement as its file holds it: one line.

    Args:
        who: the command in words.
        peaks: what it came to, in bytes, by resource ("ram" or a card's UUID).
        used: what it holds now, likewise.
        pids: its processes, the largest first.
    """
    document = {"who": who, "peaks": dict(peaks), "used": dict(used), "pids": pids[:MOST_PIDS]}
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _files(host: Host) -> list[str]:
    found: list[str] = []
    for place in PLACES:
        with contextlib.suppress(NoData, SourceError):
            found += [
                f"{place}/{name}"
                for name in host.names(place)
                if name.startswith(PREFIX) and name.endswith(SUFFIX)
            ]
    return found


def _locked_text(path: str) -> bytes:
    """Return what is in a file that somebody holds locked; of all others nothing."""
    with contextlib.suppress(OSError), documents.opened(path) as descriptor:  # else it has ended meanwhile
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return os.read(descriptor, MOST_BYTES)
    return b""


def _parsed(content: bytes) -> Iterator[Expected]:
    """Yield the peaks of an announcement; what is none, or only half written, is nothing."""
    try:
        document = documents.parsed(content.partition(b"\n")[0])
        who = named(str(document["who"]))[:MOST_CHARACTERS]
        pids = tuple(int(pid) for pid in document["pids"][:MOST_PIDS])
        rows = [
            Expected(str(name)[:MOST_CHARACTERS], who, int(peak), int(document["used"].get(name, 0)), pids)
            for name, peak in list(document["peaks"].items())[:MOST_PEAKS]
        ]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return
    yield from (row for row in rows if 0 <= row.used_bytes < _MOST and 0 < row.peak_bytes < _MOST)
