"""Processes: the biggest, those on a GPU, those that train or build; found cheaply, kept bounded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.serve.support import HandClock
from wslgpud.config import Config, Sampling
from wslgpud.host import Host
from wslgpud.model import ProcessSample
from wslgpud.sources import processes
from wslgpud.sources.processes import ProcessSource, build_tool, choose, short_command, title
from wslgpud.sources.procfs import OwnedFiles, ProcessStat, memory_cgroup, parse_stat

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
NO_SWAP_USED = "MemTotal: 100 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"
SWAP_USED = "MemTotal: 100 kB\nSwapTotal: 900 kB\nSwapFree: 5 kB\n"


#: of each process here, from its start on: page faults, those of a disk, clock ticks in programs and in the kernel
FAULTS, MAJOR, USER, SYSTEM = 700, 3, 150, 50


def stat(pid: int, name: str, rss_bytes: int, start: int = 1000, virtual: int = 1 << 33) -> str:
    counters = f"0 0 0 {FAULTS} 0 {MAJOR} 0 {USER} {SYSTEM} " + "0 " * 6
    return f"{pid} ({name}) S 1 {pid} {pid} " + counters + f"{start} {virtual} {rss_bytes // PAGE} 18446744073\n"


def process(pid, name, rss_bytes, *, swap_kb=0, command="", maps=""):
    return {
        f"/proc/{pid}/stat": stat(pid, name, rss_bytes),
        f"/proc/{pid}/status": f"Name:\t{name}\nUid:\t1000\t1000\t1000\t1000\nVmSwap:\t{swap_kb} kB\n",
        f"/proc/{pid}/cmdline": command.replace(" ", "\0") + "\0",
        f"/proc/{pid}/maps": maps,
    }


def read(host, **sampling) -> list[ProcessSample]:
    return list(ProcessSource(host, Config(sampling=Sampling(**sampling))).read().processes)


def test_a_name_may_hold_anything():
    row = parse_stat(stat(7, "evil) R 1 (x", 8 * PAGE, start=42, virtual=99))
    assert row is not None
    assert row[:7] == (7, "evil) R 1 (x", "S", 1, 42, 99, 8 * PAGE)


def test_the_work_of_a_process_is_counted_from_its_start(machine):
    status = "Name:\tpython3\nUid:\t7\t7\t7\t7\nVmLck:\t     64 kB\nVmPin:\t     32 kB\n"
    files = {"/proc/meminfo": NO_SWAP_USED, **process(10, "python3", 900 * MIB), "/proc/10/status": status}
    (found,) = read(machine(files))
    ticks = os.sysconf("SC_CLK_TCK")
    assert (found.cpu_seconds, found.faults_total) == ((USER + SYSTEM) / ticks, FAULTS)
    assert (found.major_faults_total, found.pinned_bytes, found.uid) == (MAJOR, 96 << 10, 7)


def test_what_the_kernel_does_not_tell_of_a_process_is_unknown(machine):
    (found,) = read(machine({"/proc/meminfo": NO_SWAP_USED, **process(10, "python3", 900 * MIB)}))
    assert found.pinned_bytes is None


def test_what_is_cut_short_is_no_process():
    assert parse_stat("") is None
    assert parse_stat("7 (bash) S 1 2 3") is None
    assert parse_stat(stat(7, "bash", PAGE).replace("1000 8589934592", "x y")) is None


def test_a_training_is_recognized_by_its_libraries_and_gpu(machine):
    torch = "7f00-7f01 r-xp 0 08:20 1 /opt/venv/lib/python3.12/site-packages/torch/lib/libtorch_cpu.so\n"
    host = machine(
        {
            "/proc/meminfo": NO_SWAP_USED,
            **process(10, "pt_main_thread", 900 * MIB, command="/usr/bin/python3.12 -u train.py", maps=torch),
            **process(11, "python3", 300 * MIB, command="python3 -m http.server", maps="/usr/lib/libc.so.6\n"),
            **process(
                12, "llama-server", 400 * MIB, command="llama-server --api-key geheim", maps="/lib/libcudart.so\n"
            ),
            **process(13, "ollama", 200 * MIB, command="ollama runner", maps="/usr/lib/ollama/libggml-cuda.so\n"),
            **process(14, "soffice", 100 * MIB, command="soffice", maps="/usr/lib/libonnxruntime.so.1\n"),
        },
        links={
            "/proc/10/exe": "/usr/bin/python3.12",
            "/proc/10/fd/5": "/dev/dxg",
            "/proc/11/exe": "/usr/bin/python3.12",
            "/proc/12/fd/3": "/dev/nvidia0",
            "/proc/12/fd/4": "/dev/null",
            "/proc/13/fd/4": "/dev/nvidiactl",
        },
    )
    assert [(p.pid, p.roles, p.command, p.uid) for p in read(host)] == [
        (10, {"gpu", "training"}, "python3.12 train.py", 1000),
        (12, {"gpu"}, "llama-server", 1000),
        (11, frozenset(), "python3 -m http.server", 1000),
        (13, {"gpu", "training"}, "ollama", 1000),
        (14, frozenset(), "soffice", 1000),
    ]


class Watched:
    """A machine whose processes open the GPU while a source watches it."""

    def __init__(self, machine, sizes: dict[int, int]) -> None:
        files = {"/proc/meminfo": NO_SWAP_USED}
        for pid, size in sizes.items():
            files |= process(pid, "train", size)
        self.host = machine(files, links={"/proc/1/exe": "/sbin/init"})
        self.host.clock = HandClock()
        self.source = ProcessSource(self.host, Config())

    def open_gpu(self, *pids: int) -> None:
        self.host._links |= {f"/proc/{pid}/fd/3": "/dev/dxg" for pid in pids}

    def on_gpu(self, seconds: float = 0.0) -> set[int]:
        self.host.clock.advance(seconds)
        return {p.pid for p in self.source.read().processes if "gpu" in p.roles}


def test_a_program_is_inspected_from_48_mib_on(machine):
    watched = Watched(machine, {10: 48 * MIB, 11: 48 * MIB - PAGE})
    watched.open_gpu(10, 11)
    assert watched.on_gpu() == {10}


def test_an_opened_gpu_is_seen_after_48_mib_more_or_a_minute(machine):
    watched = Watched(machine, {10: 60 * MIB, 11: 60 * MIB, 12: 60 * MIB})
    assert watched.on_gpu() == set()
    watched.open_gpu(10, 11, 12)
    for pid, size in ((11, 108 * MIB), (12, 108 * MIB - PAGE)):
        Path(watched.host.path(f"/proc/{pid}/stat")).write_text(stat(pid, "train", size))
    assert watched.on_gpu(seconds=59) == {11}
    assert watched.on_gpu(seconds=1) == {10, 11, 12}


def test_each_scan_inspects_eight_programs_biggest_first(machine):
    watched = Watched(machine, {pid: (200 - pid) * MIB for pid in range(1, 11)})
    watched.open_gpu(*range(1, 11))
    assert watched.on_gpu() == set(range(1, 9))
    assert watched.on_gpu(seconds=5) == set(range(1, 11))


@pytest.mark.parametrize(
    "name",
    [
        *("nvcc", "cicc", "ptxas", "cudafe++", "cc1plus", "g++", "gcc-12", "clang++-18", "x86_64-linux-gn"),
        *("ninja", "make", "cargo", "rustc", "ld", "ld.lld", "pip3"),
    ],
)
def test_build_tools_are_known_by_name(name):
    assert build_tool(name)


@pytest.mark.parametrize("name", ["python3", "bash", "makeup", "ldconfig", "gccgo-thing", "postgres", "Xorg"])
def test_other_programs_are_no_build_tools(name):
    assert not build_tool(name)


def test_arguments_are_left_out_because_they_hold_secrets(machine):
    lines = {
        1: "/usr/bin/python3 -X dev -W error /home/me/train.py --token geheim",
        2: "python3 -m torch.distributed.run --geheim x",
        3: "python3 -c print('geheim')",
        4: "/usr/lib/gcc/cc1plus -quiet -I/geheim -o /tmp/x.s /src/flash_fwd.cu",
        5: "/bin/curl -H geheim https://example.org/geheim.c",
        6: "/usr/bin/x86_64-linux-gnu-cpp -Dgeheim /src/norm.cu",
        7: f"/opt/{'y' * 90}",
    }
    host = machine({f"/proc/{i}/cmdline": line.replace(" ", "\0") + "\0" for i, line in lines.items()})
    assert [short_command(OwnedFiles(host), i) for i in lines] == [
        "python3 train.py",
        "python3 -m torch.distributed.run",
        "python3 -c",
        "cc1plus flash_fwd.cu",
        "curl",
        "x86_64-linux-gnu-cpp norm.cu",
        "y" * 80,
    ]


def test_a_title_of_megabytes_is_cut_before_it_is_cleaned(monkeypatch):
    """Searching it for secrets takes seconds, in which no other thread runs."""
    cleaned = []
    monkeypatch.setattr(processes, "named", lambda text: cleaned.append(text) or text)

    assert title(["a" * (2 << 20)]) == "a" * 80
    assert len(cleaned[0]) == 320


def test_of_endless_arguments_only_the_beginning_is_read(machine):
    host = machine({"/proc/7/cmdline": "python3\0train.py\0" + "x\0" * (1 << 20)})

    assert len(OwnedFiles(host).text(7, "cmdline")) < 400 << 10
    assert short_command(OwnedFiles(host), 7) == "python3 train.py"


def test_a_mapping_longer_than_any_library_is_not_searched(machine):
    libraries = ("/libtorch_cpu.so", "/" + "x" * processes.MAX_MAPPING + "/libtorch_cpu.so")
    trains = []
    for library in libraries:
        maps = f"7f00-7f01 r-xp 0 08:20 1 {library}\n"
        files = {"/proc/meminfo": NO_SWAP_USED, **process(10, "python3", 900 * MIB, maps=maps)}
        (found,) = read(machine(files))
        trains.append("training" in found.roles)

    assert trains == [True, False]


def test_a_process_that_lies_in_swap_is_among_the_biggest(machine):
    files = {"/proc/meminfo": SWAP_USED}
    for pid in range(1, 31):
        files |= process(pid, f"p{pid}", pid * MIB)
    files |= process(99, "sleeper", MIB, swap_kb=500 * 1024)
    found = read(machine(files), processes_max=4)
    assert [(p.name, p.rss_bytes, p.swap_bytes) for p in found[:2]] == [
        ("sleeper", MIB, 500 * MIB),
        ("p30", 30 * MIB, 0),
    ]


def test_what_lies_in_ram_and_in_swap_counts_together():
    rows = [
        ProcessStat(1, "ram", "S", 1, 1, 1, 300),
        ProcessStat(2, "both", "S", 1, 1, 1, 200),
        ProcessStat(3, "swap", "S", 1, 1, 1, 10),
        ProcessStat(4, "less", "S", 1, 1, 1, 290),
    ]
    swap = {2: 150, 3: 291}
    assert [r.name for r in choose(rows, swap, {}, 4)] == ["both", "swap", "ram", "less"]
    assert [r.name for r in choose(rows, swap, {}, 2)] == ["both", "swap"]


def test_a_small_build_that_lies_in_swap_is_listed_with_its_swap(machine):
    files = {"/proc/meminfo": SWAP_USED}
    for pid in range(1, 5):
        files |= process(pid, f"p{pid}", 300 * MIB)
    files |= process(99, "cc1plus", MIB, swap_kb=100 * 1024)
    files["/proc/99/stat"] = stat(99, "cc1plus", MIB, virtual=200 * MIB)

    assert {p.name: p.swap_bytes for p in read(machine(files), processes_max=4)}["cc1plus"] == 100 * MIB


def test_no_process_too_small_for_the_list_is_asked_for_its_swap(machine):
    files = {"/proc/meminfo": SWAP_USED}
    for pid, virtual, rss, swap in ((1, 1000, 10, 500), (2, 900, 300, 300), (3, 520, 100, 415), (4, 100, 10, 90)):
        files |= process(pid, f"p{pid}", rss * MIB, swap_kb=swap * 1024)
        files[f"/proc/{pid}/stat"] = stat(pid, f"p{pid}", rss * MIB, virtual=virtual * MIB)
    host, asked = machine(files), []
    read_one = host.read
    host.read = lambda path: asked.append(path) or read_one(path)
    assert [p.name for p in read(host, processes_max=2)] == ["p2", "p3"]
    # The fourth occupies no more than it has mapped, and that is no more than the second biggest has in RAM.
    assert [f"/proc/{pid}/status" in asked for pid in (1, 2, 3, 4)] == [True, True, True, False]


def test_a_limited_list_keeps_roles_first_then_the_biggest():
    rows = [ProcessStat(pid, f"p{pid}", "S", 1, 1, 1, pid * MIB) for pid in range(1, 101)]
    kept = choose(rows, {}, {3: frozenset({"build"}), 5: frozenset({"gpu"})}, 6)
    assert [r.pid for r in kept] == [100, 99, 98, 97, 5, 3]
    assert [r.pid for r in choose(rows, {}, {}, 1)] == [100]


def test_a_program_that_replaces_itself_is_looked_at_anew(machine):
    host = machine({"/proc/meminfo": NO_SWAP_USED, **process(10, "bash", 100 * MIB, command="bash")})
    source = ProcessSource(host, Config())
    assert source.read().processes[0].command == "bash"
    for path, text in process(10, "ninja", 100 * MIB, command="ninja -j 24").items():
        Path(host.path(path)).write_text(text)
    (after,) = source.read().processes
    assert (after.command, after.roles) == ("ninja", {"build"})


def test_programs_are_summed_and_roles_counted(machine, values):
    files = {"/proc/meminfo": NO_SWAP_USED, "/proc/2/stat": stat(2, "kthreadd", 0, virtual=0)}
    for pid in (10, 11, 12):
        files |= process(pid, "cc1plus", 100 * MIB)
    found = values(ProcessSource(machine(files), Config()).read())
    assert found["program_resident_bytes{cc1plus}"] == 300 * MIB
    assert found["role_processes{build}"] == 3
    assert found["role_processes{gpu}"] == 0
    assert found["processes"] == 3


@contextmanager
def running(*command: str, **kwargs) -> Iterator[subprocess.Popen]:
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **kwargs)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


HOG = "import sys; block = b'x' * (64 << 20); print('ready', flush=True); sys.stdin.read()"


def test_a_real_process_is_seen_with_its_size_and_owner():
    with running(sys.executable, "-c", HOG) as child:
        child.stdout.readline()
        found = {p.pid: p for p in read(Host(), processes_max=100)}
        hog = found[child.pid]
        assert hog.rss_bytes >= 64 * MIB
        assert hog.uid == os.getuid()
        assert hog.command.endswith(" -c")
    assert child.pid not in {p.pid for p in read(Host(), processes_max=100)}


def with_roles(pid: int) -> ProcessSample:
    """Scan until this process has roles: each scan looks closer at a few processes only, the others in turn."""
    source = ProcessSource(Host(), Config(sampling=Sampling(processes_max=100)))
    for _ in range(50):
        found = {p.pid: p for p in source.read().processes}[pid]
        if found.roles:
            break
    return found


def test_a_real_python_with_a_framework_loaded_trains(tmp_path: Path):
    # Any file will do: what counts is the name under which it is mapped.
    library = tmp_path / "libtorch_cpu.so"
    library.write_bytes(bytes(4096))
    code = f"import mmap; f = open({str(library)!r}, 'rb'); m = mmap.mmap(f.fileno(), 0, prot=1); {HOG}"
    with running(sys.executable, "-c", code) as child:
        child.stdout.readline()

        assert with_roles(child.pid).roles == {"training"}


def test_the_torch_that_a_real_python_has_imported_is_seen(tmp_path: Path):
    """Read as text or written beside it, the same file would be no sign of that."""
    torch = tmp_path / "my env/lib/python3.12/site-packages/torch"
    (torch / "lib").mkdir(parents=True)
    for library in (torch / "_C.cpython-312.so", torch / "lib/libtorch_cpu.so"):
        library.write_bytes(bytes(4096))
    mapped = (
        "import mmap, os; maps = [mmap.mmap(os.open(f, 0), 0, flags=mmap.MAP_PRIVATE, prot=p)"
        f" for f, p in (({str(torch / 'lib/libtorch_cpu.so')!r}, 1), ({str(torch / '_C.cpython-312.so')!r}, PROT))]; "
    )
    exe = str(Path(f"/proc/{os.getpid()}/exe").readlink())
    for protection, seen in ((1, None), (5, (exe, str(torch)))):
        with running(sys.executable, "-c", mapped.replace("PROT", str(protection)) + HOG) as child:
            child.stdout.readline()
            found = with_roles(child.pid)
            assert (found.roles, found.torch) == ({"training"}, seen)


def test_a_real_build_tool_builds(tmp_path: Path):
    tool = tmp_path / "cc1plus"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", tool)
    with running(str(tool), "600") as child:
        source = ProcessSource(Host(), Config(sampling=Sampling(processes_max=100)))
        # Popen waits until the child has replaced itself, which gives it a name; its arguments come a moment later.
        while not Path(f"/proc/{child.pid}/cmdline").read_bytes():
            time.sleep(0.01)
        found = {p.pid: p for p in source.read().processes}
        assert found[child.pid].roles == {"build"}
        assert found[child.pid].command == "cc1plus"


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("0::/user.slice/build.scope\n", "/user.slice/build.scope"),
        ("12:cpu,cpuacct:/a\n9:memory:/job\n1:name=systemd:/init.scope\n0::/init.scope\n", "/job"),
        ("1:name=systemd:/x\n0::/with:colon\n", "/with:colon"),
        ("", ""),
        ("rubbish\n", ""),
    ],
)
def test_the_group_is_that_whose_memory_is_limited(text, group):
    assert memory_cgroup(text) == group


def test_a_name_that_would_command_a_terminal_is_made_harmless() -> None:
    row = parse_stat(stat(7, "\x1b[2J\u202ex\nR", PAGE))

    assert row.name == "\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}x\N{REPLACEMENT CHARACTER}R"
