"""The other side of WSL2, from stand-ins for powershell.exe and windows_exporter; no Windows takes part."""

from __future__ import annotations

import base64
import http.server
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wslgpud.config import Config, Windows
from wslgpud.host import Host, NoData, RecordedHost, SourceError, StoppedClock
from wslgpud.model import Sample
from wslgpud.probes import interop, windows_probe
from wslgpud.sampling.capture import capture
from wslgpud.sources import windows
from wslgpud.sources.windows import Adapter, Facts, WindowsSource, from_exporter, from_probe, labelled, unreturned_bytes

HERE = Path(__file__).parent / "windows"
ANSWER = json.loads((HERE / "answer.json").read_text())
CARD = "NVIDIA GeForce RTX 5070 Ti"

#: Writes down how it was started, then answers each line as the test says.
POWERSHELL = """#!{python}
import json, os, sys, time
from pathlib import Path
here = Path(sys.argv[0]).parent
with (here / "starts").open("a") as starts:
    starts.write(json.dumps({{"args": sys.argv[1:], "cwd": os.getcwd(), "pid": os.getpid(),
                              "interop": os.environ.get("WSL_INTEROP")}}) + "\\n")
answer = (here / "answer").read_bytes()
for line in iter(sys.stdin.readline, ""):
    {behaviour}
    sys.stdout.buffer.write(answer)
    sys.stdout.flush()
(here / "ended").touch()
"""


class Machine:
    """A folder that looks like a WSL2 machine whose PowerShell does what the test wants."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "mnt/c/Windows/System32/WindowsPowerShell/v1.0"
        self.folder.mkdir(parents=True)
        self.binfmt = root / "proc/sys/fs/binfmt_misc/WSLInterop-late"
        self.binfmt.parent.mkdir(parents=True)
        self.binfmt.touch()
        (root / "dev").mkdir()
        (root / "dev/dxg").touch()
        (root / "proc/meminfo").write_text("MemTotal:  49283072 kB\nMemFree:   29360128 kB\n")
        self.sources: list[WindowsSource] = []
        self.answer()

    def answer(self, raw: bytes | None = None, behaviour: str = "pass") -> None:
        (self.folder / "answer").write_bytes(json.dumps(ANSWER).encode() + b"\n" if raw is None else raw)
        program = self.folder / "powershell.exe"
        program.write_text(POWERSHELL.format(python=sys.executable, behaviour=behaviour))
        program.chmod(0o755)

    def source(self, **settings: Any) -> WindowsSource:
        host = Host(self.root, StoppedClock(1.8e9, 1000.0))  # how soon after a failure is said by no machine
        self.sources.append(WindowsSource(host, Config(windows=Windows(**settings))))
        return self.sources[-1]

    def starts(self) -> list[dict[str, Any]]:
        file = self.folder / "starts"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    for source in made.sources:
        source.close()


def values(sample: Sample) -> dict[str, float]:
    return {"/".join((r.spec.name, *r.labels)): r.value for r in sample.readings}


def test_one_process_answers_many_times_and_ends_when_we_do(machine: Machine) -> None:
    source = machine.source()
    for _ in range(5):
        found = values(source.read())
    source.close()

    (start,) = machine.starts()
    assert start["cwd"] == str(machine.root / "mnt/c")
    *options, encoded = start["args"]
    assert options[-1] == "-EncodedCommand"
    assert base64.b64decode(encoded).decode("utf-16-le") == interop.framed(windows_probe.SCRIPT)
    assert (machine.folder / "ended").exists()
    assert found[windows.TOTAL.name] == 66888116 * 1024
    assert found[windows.AVAILABLE.name] == 9663676416  # WMI writes numbers of 64 bits as text at times


def test_the_command_line_is_far_from_windows_limit() -> None:
    assert len(" ".join(interop.powershell_command(Host(), windows_probe.SCRIPT))) < 16_000


def test_the_cards_are_named_and_what_is_none_is_left_out(machine: Machine) -> None:
    found = values(machine.source().read())

    assert found[f"windows_gpu_shared_bytes/{CARD}"] == 3221225472
    assert found[f"windows_gpu_dedicated_size_bytes/{CARD}"] == 16894656512
    assert found["windows_gpu_shared_bytes/Intel(R) UHD Graphics 770"] == 1073741824
    assert sum(name.startswith("windows_gpu_shared_bytes") for name in found) == 2


def test_what_linux_has_freed_and_windows_has_not_got_back_is_known(machine: Machine) -> None:
    found = values(machine.source().read())

    used = (49283072 - 29360128) * 1024
    assert found[windows.VM_UNRETURNED.name] == 41875931136 - used
    # In some versions of Windows the process does not show the memory of its guest: then nothing is known.
    assert unreturned_bytes(2 << 30, 19 << 30) is None
    assert unreturned_bytes(18 << 30, 19 << 30) == 0


def test_without_interop_nothing_is_started_and_it_is_no_fault(machine: Machine) -> None:
    machine.binfmt.unlink()
    with pytest.raises(NoData, match="interop is off"):
        machine.source().read()
    assert machine.starts() == []


def test_a_start_is_not_tried_where_it_is_switched_off_or_the_machine_is_a_recording(machine: Machine) -> None:
    with pytest.raises(NoData, match=r"windows\.probe"):
        machine.source(probe="off").read()
    folder = machine.root.parent / f"{machine.root.name}-recorded"
    folder.mkdir()
    (folder / "root").symlink_to(machine.root)
    (folder / "host.json").write_text('{"wall": 1, "mono": 1}')
    with pytest.raises(NoData, match="nothing of Windows was recorded"):
        WindowsSource(RecordedHost(folder), Config()).read()
    with pytest.raises(NoData, match="not WSL2"):
        WindowsSource(Host(machine.root / "mnt"), Config()).read()
    assert machine.starts() == []


def test_a_capture_holds_what_windows_says_and_shows_it_again(machine: Machine, tmp_path: Path) -> None:
    (machine.root / "proc/vmstat").touch()
    copy = machine.root.parent / f"{machine.root.name}-copy"
    capture(Host(machine.root), copy)
    own = values(machine.source().read())

    assert json.loads((copy / "windows.json").read_text()) == ANSWER
    assert values(WindowsSource(RecordedHost(copy), Config()).read()) == own


def test_a_socket_of_a_session_that_has_ended_is_not_passed_on(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WSL_INTEROP", "/run/WSL/999_interop")
    machine.source().read()

    assert machine.starts()[0]["interop"] is None


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ('Der Befehl "x" ist entweder falsch geschrieben'.encode("cp850") + b"\n", "not a JSON object"),
        ("此时不应有".encode("gbk") + b"\n", "not a JSON object"),
        (b"[1, 2]\n", "not a JSON object"),
        (b"{}\n", "Windows reports nothing about itself: no reason given"),
        (
            json.dumps({"missing": {"memory": "Ungültige Klasse", "gpu": "无效类"}}).encode() + b"\n",
            "reports nothing about itself: Ungültige Klasse; 无效类",
        ),
    ],
    ids=["cp850", "gbk", "array", "empty", "no class"],
)
def test_an_answer_in_another_language_or_of_another_form_is_a_fault_that_is_named(
    machine: Machine, raw: bytes, said: str
) -> None:
    machine.answer(raw)
    with pytest.raises(SourceError, match=said):
        machine.source().read()


def test_utf_16_as_windows_own_tools_write_it_does_not_hang_for_ever(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "START_TIMEOUT_SECONDS", 3.0)
    machine.answer(json.dumps(ANSWER).encode("utf-16-le") + "\r\n".encode("utf-16-le"))
    with pytest.raises(SourceError, match="did not answer within 3 s"):
        machine.source().read()


def test_one_that_dies_is_named_and_started_again_later_not_at_once(machine: Machine) -> None:
    machine.answer(behaviour='sys.exit("Zugriff verweigert")')
    source = machine.source()
    with pytest.raises(SourceError, match="ended with status 1: Zugriff verweigert"):
        source.read()
    with pytest.raises(SourceError):
        source.read()
    assert len(machine.starts()) == 1


def test_one_that_hangs_is_ended(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "START_TIMEOUT_SECONDS", 3.0)
    machine.answer(behaviour="time.sleep(600)")
    with pytest.raises(SourceError, match="did not answer within 3 s and was killed"):
        machine.source().read()
    assert not any(Path(f"/proc/{start['pid']}").exists() for start in machine.starts())


def test_a_slow_windows_is_waited_for(machine: Machine) -> None:
    machine.answer(behaviour="time.sleep(1)")
    assert values(machine.source().read())[windows.COMMITTED.name] == 51539607552


def test_a_windows_without_counters_for_gpus_tells_all_the_rest(machine: Machine) -> None:
    poor = {k: v for k, v in ANSWER.items() if k not in ("gpu", "adapters")}
    machine.answer(json.dumps({**poor, "missing": {"gpu": "Invalid class"}}).encode() + b"\n")
    found = values(machine.source().read())

    assert found[windows.AVAILABLE.name] == 9663676416
    assert not any("gpu" in name for name in found)


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


def test_windows_exporter_says_the_same_and_no_process_is_started(machine: Machine) -> None:
    own = values(machine.source().read())
    with exporter((HERE / "exporter.txt").read_text()) as url:
        found = values(machine.source(exporter_url=url, probe="off").read())

    assert found == {name: value for name, value in own.items() if "Intel" not in name}
    assert len(machine.starts()) == 1


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
def test_an_exporter_that_cannot_be_used_is_named_without_secrets(
    machine: Machine, make: Callable[[str], str], said: str
) -> None:
    with exporter("node_memory_MemFree_bytes 1\n") as url, pytest.raises(SourceError, match=said) as caught:
        machine.source(exporter_url=make(url)).read()
    assert "hunter2" not in str(caught.value)


def test_several_cards_of_one_name_and_one_without_a_name_keep_apart() -> None:
    cards = [Adapter((0, n), name, {windows.GPU_SHARED: 1}) for n, name in ((9, "A"), (3, "A"), (5, ""), (7, "B"))]

    assert [(label, a.luid[1]) for label, a in labelled(cards)] == [
        ("A", 3),
        ("luid 0x0_0x5", 5),
        ("B", 7),
        ("A #2", 9),
    ]


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=15,
)
PARTS = ["memory", "system", "gpu", "vm", "adapters"]
NAMES = ["Name", "Luid", "TotalVisibleMemorySize", "AvailableBytes", "SharedUsage", "WorkingSet"]
row = st.dictionaries(st.sampled_from(NAMES), json_values | st.just("luid_0x0_0xc8a5_phys_0"))


@given(st.dictionaries(st.sampled_from(PARTS), json_values | st.lists(row)))
def test_whatever_is_answered_gives_plausible_facts_or_none(answer: dict[str, Any]) -> None:
    facts = from_probe(answer)
    for reading in windows.readings(facts, 1 << 30):
        assert 0 <= reading.value < 1 << 73


@given(st.text() | st.just((HERE / "exporter.txt").read_text()), st.integers(0, 2000))
def test_whatever_is_served_is_read_without_a_fault(text: str, cut: int) -> None:
    for reading in windows.readings(from_exporter(text[: cut or None]), None):
        assert reading.value >= 0
    assert from_exporter("") == Facts({}, ())


@pytest.mark.parametrize(
    ("entries", "works"), [(["WSLInterop"], True), (["WSLInterop-late"], True), (["python3.11"], False)]
)
def test_interop_is_seen_by_its_entry(tmp_path: Path, entries: list[str], works: bool) -> None:
    folder = tmp_path / "proc/sys/fs/binfmt_misc"
    folder.mkdir(parents=True)
    for name in entries:
        (folder / name).touch()

    assert interop.works(Host(tmp_path)) is works
