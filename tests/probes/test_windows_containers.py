"""WSL 3's containers, as Windows shows their sessions: virtual machines of their own beside WSL's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.probes.windows_pc import ANSWER, Pc
from wslgpud.config import Config
from wslgpud.model import Sample, Snapshot, SourceReport
from wslgpud.sampling.capture import capture
from wslgpud.sampling.observation import observation_of
from wslgpud.sources import windows
from wslgpud.sources.windows import WindowsSource, from_exporter, from_probe

GIB = 1 << 30


def answer(*vms: tuple[str, int]) -> dict[str, object]:
    return {**ANSWER, "vm": [{"Name": name, "WorkingSet": size, "Private": size} for name, size in vms]}


def test_a_session_of_containers_is_counted_beside_wsl() -> None:
    facts = from_probe(answer(("vmmemWSL", 9 * GIB), ("vmmemwslc-cli-erika", 5 * GIB), ("vmmemSandbox", GIB)))

    assert facts.sizes[windows.VM] == 9 * GIB
    assert facts.containers == {"wslc-cli-erika": 5 * GIB}


def test_the_exporter_tells_of_sessions_as_well() -> None:
    line = 'windows_process_working_set_bytes{process="vmmemwslc-cli-admin-erika",process_id="7"} 5368709120\n'

    assert from_exporter(line).containers == {"wslc-cli-admin-erika": 5 * GIB}


def test_only_the_largest_eight_sessions_count() -> None:
    sessions = tuple((f"vmmemwslc-app-{n:02}", (1 + n) * GIB) for n in range(20))

    assert list(from_probe(answer(*sessions)).containers) == [f"wslc-app-{n:02}" for n in range(19, 11, -1)]


def test_a_session_cannot_write_on_a_terminal() -> None:
    (name,) = from_probe(answer((f"vmmemwslc-\x1b[31m\n{'x' * 300}", GIB))).containers

    assert name.isprintable()
    assert len(name) < 40


@pytest.mark.parametrize(
    ("vms", "seen"),
    [
        ((("vmmemWSL", GIB), ("vmmemwslc-cli-me", 2 * GIB)), {"wslc-cli-me": 2 * GIB}),
        ((("vmmemWSL", GIB),), {}),
        ((), None),
    ],
    ids=["one", "none", "unknown"],
)
def test_no_session_is_not_the_same_as_an_unknown_one(
    vms: tuple[tuple[str, int], ...], seen: dict[str, int] | None
) -> None:
    sample = Sample(tuple(windows.readings(from_probe(answer(*vms)), None)))
    snapshot = Snapshot(0.0, 5.0, 1, (SourceReport("windows", "ok", sample, 5.0, 0.1),))

    assert observation_of(snapshot).containers == seen


def test_a_capture_does_not_name_the_windows_user(tmp_path: Path) -> None:
    pc = Pc(tmp_path / "pc")
    pc.says(probe={"answer": answer(("vmmemWSL", GIB), ("vmmemwslc-cli-admin-Erika Muster", GIB))})
    (pc.root / "proc/vmstat").touch()
    capture(pc.host, tmp_path / "copy")
    source = WindowsSource(pc.host, Config())
    try:
        assert source.read()
    finally:
        source.close()

    told = (tmp_path / "copy/windows.json").read_text()
    assert "vmmemwslc-cli-admin-user" in told
    assert "Muster" not in told
