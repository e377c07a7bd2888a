"""The other side of WSL2, from stand-ins for powershell.exe and windows_exporter; no Windows takes part."""

from __future__ import annotations

import base64
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.probes.windows_pc import ANSWER, HERE, WINDOWS, Pc
from wslgpud.config import Config, Windows
from wslgpud.host import Host, NoData, RecordedHost, SourceError
from wslgpud.model import Sample
from wslgpud.probes import interop
from wslgpud.sampling.capture import capture
from wslgpud.sources import windows
from wslgpud.sources.windows import Facts, WindowsSource, from_exporter, from_probe, unreturned_bytes

CARD = "NVIDIA GeForce RTX 5070 Ti"
EXPORTER = (HERE / "exporter.txt").read_text()
ASKED_IN_FULL = sorted(name for name, windows in WINDOWS.items() if "metrics" in windows["expected"])
REFUSED = sorted(name for name, windows in WINDOWS.items() if windows.get("probe", {}).get("dies"))


@pytest.fixture
def pc(tmp_path: Path) -> Pc:
    return Pc(tmp_path / "pc")


@pytest.fixture
def ask(pc: Pc) -> Iterator[Callable[..., WindowsSource]]:
    """Make sources of this machine, which end with the test."""
    sources: list[WindowsSource] = []

    def make(**settings: Any) -> WindowsSource:
        sources.append(WindowsSource(pc.host, Config(windows=Windows(**settings))))
        return sources[-1]

    yield make
    for source in sources:
        source.close()


Ask = Callable[..., WindowsSource]


def values(sample: Sample) -> dict[str, float]:
    return {"/".join((r.spec.name, *r.labels)): r.value for r in sample.readings}


def test_one_process_answers_many_times_and_ends_when_we_do(pc: Pc, ask: Ask) -> None:
    source = ask()
    for _ in range(5):
        found = values(source.read())
    source.close()

    (start,) = pc.starts()
    assert start["cwd"] == str(pc.root / "mnt/c")
    *options, encoded = start["args"]
    assert options[-1] == "-EncodedCommand"
    assert base64.b64decode(encoded).decode("utf-16-le") == interop.framed(interop.RESIDENT_PROBE)
    assert (pc.folder / "ended").exists()
    assert found[windows.TOTAL.name] == 66888116 * 1024
    assert found[windows.AVAILABLE.name] == 9663676416  # WMI writes numbers of 64 bits as text at times


def test_the_command_line_is_far_from_windows_limit() -> None:
    assert len(" ".join(interop.powershell_command(Host(), interop.RESIDENT_PROBE))) < 16_000


def test_the_cards_are_named_and_what_is_none_is_left_out(pc: Pc, ask: Ask) -> None:
    found = values(ask().read())

    assert found[f"windows_gpu_shared_bytes/{CARD}"] == 3221225472
    assert found[f"windows_gpu_dedicated_size_bytes/{CARD}"] == 16894656512
    assert found["windows_gpu_shared_bytes/Intel(R) UHD Graphics 770"] == 1073741824
    assert sum(name.startswith("windows_gpu_shared_bytes") for name in found) == 2


def test_memory_linux_freed_but_windows_did_not_get_is_known(pc: Pc, ask: Ask) -> None:
    found = values(ask().read())

    used = (49283072 - 29360128) * 1024
    assert found[windows.VM_UNRETURNED.name] == 41875931136 - used
    # In some versions of Windows the process does not show the memory of its guest: then nothing is known.
    assert unreturned_bytes(2 << 30, 19 << 30) is None
    assert unreturned_bytes(18 << 30, 19 << 30) == 0
    assert [unreturned_bytes(vm, 20) for vm in (9, 10, 21)] == [None, 0, 1]


def test_without_interop_nothing_is_started_and_it_is_no_fault(pc: Pc, ask: Ask) -> None:
    pc.says("11-without-interop")
    with pytest.raises(NoData, match="interop is off"):
        ask().read()
    assert pc.starts() == []


def test_no_probe_starts_if_switched_off_or_on_a_recording(pc: Pc, ask: Ask) -> None:
    with pytest.raises(NoData, match=r"windows\.probe"):
        ask(probe="off").read()
    folder = pc.root.parent / f"{pc.root.name}-recorded"
    folder.mkdir()
    (folder / "root").mkdir()
    (folder / "host.json").write_text('{"wall": 1, "mono": 1}')
    with pytest.raises(NoData, match="nothing of Windows was recorded"):
        WindowsSource(RecordedHost(folder), Config()).read()
    with pytest.raises(NoData, match="not WSL2"):
        WindowsSource(Host(pc.root / "mnt"), Config()).read()
    assert pc.starts() == []


def test_a_capture_holds_what_windows_says_and_shows_it_again(pc: Pc, ask: Ask, tmp_path: Path) -> None:
    (pc.root / "proc/vmstat").touch()
    copy = pc.root.parent / f"{pc.root.name}-copy"
    capture(pc.host, copy)
    own = values(ask().read())

    assert json.loads((copy / "windows.json").read_text()) == ANSWER
    assert values(WindowsSource(RecordedHost(copy), Config()).read()) == own


def test_a_socket_of_a_session_that_has_ended_is_not_passed_on(
    pc: Pc, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WSL_INTEROP", "/run/WSL/999_interop")
    ask().read()

    assert pc.starts()[0]["interop"] is None


@pytest.mark.parametrize("name", ASKED_IN_FULL)
def test_every_windows_is_read_correctly_whatever_its_language(pc: Pc, ask: Ask, name: str) -> None:
    pc.says(name)
    source = ask()

    for _ in range(2):
        assert values(source.read()) == WINDOWS[name]["expected"]["metrics"]
    assert len(pc.starts()) == 1


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_pipe_is_a_named_fault_and_the_next_start_works(pc: Pc, ask: Ask, name: str) -> None:
    pc.says(name)
    source = ask()
    with pytest.raises(SourceError, match=r"Windows probe ended with status \d"):
        source.read()
    with pytest.raises(SourceError):
        source.read()  # not at once
    assert len(pc.starts()) == 1

    pc.says()
    assert values(ask().read())[windows.AVAILABLE.name] == 9663676416


def test_a_pipe_that_breaks_after_an_answer_costs_the_next_one(pc: Pc, ask: Ask) -> None:
    pc.says(probe={"answer": ANSWER, "dies": True, "status": 3, "complaint": "管道已结束。\n"})
    source = ask()
    assert values(source.read())[windows.AVAILABLE.name] == 9663676416
    with pytest.raises(SourceError, match="ended with status 3: 管道已结束。"):
        source.read()


def test_a_value_windows_lacked_is_back_with_the_next_answer(pc: Pc, ask: Ask) -> None:
    without = {**ANSWER, "memory": [], "missing": {"memory": "Zeitüberschreitung"}}
    pc.says(probe={"answers": [ANSWER, without, ANSWER]})
    source = ask()
    there = [windows.AVAILABLE.name in values(source.read()) for _ in range(3)]

    assert there == [True, False, True]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"text": 'Der Befehl "x" ist falsch geschrieben, prüfen Sie\n', "encoding": "cp850"}, "not a JSON object"),
        ({"text": "此时不应有\n", "encoding": "gbk"}, "not a JSON object"),
        ({"text": "[1, 2]\n"}, "not a JSON object"),
        ({"text": "{}\n"}, "Windows reports nothing about itself: no reason given"),
        (
            {"answer": {"missing": {"memory": "Ungültige Klasse", "gpu": "无效类"}}},
            "reports nothing about itself: Ungültige Klasse; 无效类",
        ),
    ],
    ids=["cp850", "gbk", "array", "empty", "no class"],
)
def test_an_answer_in_an_unknown_language_is_a_named_fault(pc: Pc, ask: Ask, part: dict[str, Any], said: str) -> None:
    pc.says(probe=part)
    with pytest.raises(SourceError, match=said):
        ask().read()


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xe4"])
def test_a_recorded_answer_that_is_broken_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "host.json").write_text('{"wall": 1, "mono": 1}')
    (tmp_path / "windows.json").write_bytes(content)
    with pytest.raises(SourceError, match=f"{tmp_path}/windows.json: "):
        WindowsSource(RecordedHost(tmp_path), Config()).read()


@pytest.mark.slow
@pytest.mark.parametrize("part", [{"answer": ANSWER, "encoding": "utf-16-le"}, {"answer": ANSWER, "seconds": 600}])
def test_a_probe_that_hangs_or_never_ends_its_line_is_killed(
    pc: Pc, ask: Ask, monkeypatch: pytest.MonkeyPatch, part: dict[str, Any]
) -> None:
    monkeypatch.setattr(windows, "START_TIMEOUT_SECONDS", 3.0)
    pc.says(probe=part)
    with pytest.raises(SourceError, match="did not answer within 3 s and was killed"):
        ask().read()
    assert not any(Path(f"/proc/{start['pid']}").exists() for start in pc.starts())


def test_interop_that_comes_back_is_noticed_a_minute_later(pc: Pc, ask: Ask) -> None:
    source = ask()
    pc.says("11-without-interop")
    with pytest.raises(NoData):
        source.read()
    assert source.period_seconds == 60
    pc.says()
    assert values(source.read())[windows.AVAILABLE.name] == 9663676416
    assert source.period_seconds < 60


def test_the_faster_windows_memory_goes_the_sooner_it_is_reread(pc: Pc, ask: Ask) -> None:
    answers = [
        {**ANSWER, "memory": [{"AvailableBytes": size, "CommittedBytes": 0, "CommitLimit": 1}] if size else []}
        for size in (20 << 30, 16 << 30, 12 << 30, 0, 8 << 30)
    ]
    pc.says(probe={"answers": answers})
    source, periods = ask(every_seconds=10), []
    for seconds in (0, 10, 30, 40, 50):
        pc.at(seconds)
        source.read()
        periods.append(source.period_seconds)
    # 16 GiB last 40 s at 0.4 GiB/s, and 12 GiB last 60 s at 0.2 GiB/s: eight answers before the end.
    assert periods == pytest.approx([10, 5, 7.5, 10, 10])


def test_a_slow_windows_is_waited_for(pc: Pc, ask: Ask) -> None:
    pc.says(probe={"answer": ANSWER, "seconds": 1})
    assert values(ask().read())[windows.COMMITTED.name] == 51539607552


@contextmanager
def exporter(text: str) -> Iterator[str]:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()


def test_windows_exporter_gives_the_same_without_a_process(pc: Pc, ask: Ask) -> None:
    own = values(ask().read())
    with exporter(EXPORTER) as url:
        found = values(ask(exporter_url=url, probe="off").read())

    assert found == {name: value for name, value in own.items() if "Intel" not in name}
    assert len(pc.starts()) == 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda _: "http://me:hunter2@127.0.0.1/metrics", "without a password"),
        (lambda _: "file:///etc/passwd", "must be like http://"),
        (lambda _: "http://[::1:9182/metrics", "must be like http://"),
        (lambda _: "http://127.0.0.1:1/metrics", "cannot be read: .*refused"),
        (lambda url: url, "has no memory, gpu or process metrics"),
    ],
    ids=["password", "file", "half an address", "refused", "another exporter"],
)
def test_an_unusable_exporter_is_named_without_secrets(pc: Pc, ask: Ask, make: Callable[[str], str], said: str) -> None:
    with exporter("node_memory_MemFree_bytes 1\n") as url, pytest.raises(SourceError, match=said) as caught:
        ask(exporter_url=make(url)).read()
    assert "hunter2" not in str(caught.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=15,
)
PARTS = ["memory", "system", "gpu", "vm", "adapters", "programs"]
NAMES = [
    "Name",
    "Luid",
    "TotalVisibleMemorySize",
    "AvailableBytes",
    "SharedUsage",
    "WorkingSet",
    "LocalUsage",
    "Program",
]
row = st.dictionaries(
    st.sampled_from(NAMES), json_values | st.sampled_from(["luid_0x0_0xc8a5_phys_0", "pid_7_luid_0x0_0xc8a5_phys_0"])
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(PARTS), json_values | st.lists(row)))
def test_whatever_is_answered_gives_plausible_facts_or_none(answer: dict[str, Any]) -> None:
    facts = from_probe(answer)
    for reading in windows.readings(facts, 1 << 30):
        assert 0 <= reading.value < 1 << 73


@given(st.text() | st.just(EXPORTER), st.integers(0, 2000))
def test_whatever_is_served_is_read_without_a_fault(text: str, cut: int) -> None:
    for reading in windows.readings(from_exporter(text[: cut or None]), None):
        assert reading.value >= 0
    assert from_exporter("") == Facts({}, (), {})


@pytest.mark.parametrize(
    ("entries", "works"), [(["WSLInterop"], True), (["WSLInterop-late"], True), (["python3.11"], False)]
)
def test_interop_is_seen_by_its_entry(tmp_path: Path, entries: list[str], works: bool) -> None:
    folder = tmp_path / "proc/sys/fs/binfmt_misc"
    folder.mkdir(parents=True)
    for name in entries:
        (folder / name).touch()

    assert interop.works(Host(tmp_path)) is works
