"""Among too many files a new note is read within ten seconds, and among too many notes those of trusted users."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sampling.test_pipeline import SteppingClock
from tests.support.elsewhere import Elsewhere, open_to_all
from wslgpud.active_runs.note_reader import RunNotes
from wslgpud.active_runs.notes import PLACES, Note
from wslgpud.host import Host
from wslgpud.sources.identity import Trust

ROOTS = Trust(users=frozenset({0}))


@pytest.mark.parametrize(("files", "seen_after_seconds"), [(1024, [0.0, 9.5, 10.0]), (1025, [10.0])])
def test_a_folder_of_over_1024_files_is_listed_every_ten_seconds(
    tmp_path: Path, files: int, seen_after_seconds: list[float]
) -> None:
    clock = SteppingClock()
    host = Elsewhere(open_to_all(tmp_path) / "shared", clock)
    for number in range(files):
        Path(host.path(PLACES[0]), f"{number}.json").touch()
    notes = RunNotes(host)
    assert notes.read() == []
    began, seen = clock.now, []
    with Note(host, "guard", "make"):
        for seconds in (0.0, 9.5, 10.0):
            clock.now = began + seconds
            seen += [seconds for note in notes.read() if note.who.pid == os.getpid()]

    assert seen == seen_after_seconds


def test_of_many_notes_32_are_opened_with_trusted_users_first() -> None:
    owners = {f"{uid}-{number}": uid for uid in (1001, 1002, 1003, 0) for number in range(17)}
    folder: Any = SimpleNamespace(stat=lambda name: SimpleNamespace(st_uid=owners[name]))
    chosen, left_out = RunNotes(Host(), ROOTS)._chosen(folder, owners)

    assert chosen == [f"{uid}-{number}" for uid in (0, 1001) for number in range(16)]
    assert left_out == 4 * 17 - 32
