"""The gates' inputs are gathered from the machine."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.machines import HERE
from tests.stress.support import gpu
from tests.support.daemons import eventually
from wslgpud.config import Config
from wslgpud.host import Host, RecordedHost, SourceError
from wslgpud.model import Event, Reading
from wslgpud.sources.gpu import INFO
from wslgpud.sources.logs import KernelLogSource
from wslgpud.sources.procfs import OwnedFiles
from wslgpud.stress.conditions import GpuLock, note_hung, on_battery, still_hung, users
from wslgpud.stress.telemetry import Recent


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "proc").mkdir()
    return Host(tmp_path)


def process(host, pid, name, device, **facts):
    folder = Path(host.path(f"/proc/{pid}"))
    (folder / "fd").mkdir(parents=True)
    (folder / "fd" / "7").symlink_to(device)
    (folder / "stat").write_text(f"{pid} ({name}) S {facts.get('parent', 1)} {pid} {pid} 0 -1 4194560" + " 0" * 15)
    (folder / "maps").write_text(facts.get("maps", ""))
    (folder / "cmdline").write_text(facts.get("command", ""))


def test_programs_that_compute_are_told_from_those_that_look(machine):
    process(machine, 10, "python3", "/dev/nvidia-uvm")
    process(machine, 11, "Xorg", "/dev/nvidiactl")
    process(machine, 12, "worker", "/dev/nvidia-uvm", parent=99)
    process(machine, 13, "bash", "/dev/pts/0")

    assert users(OwnedFiles(machine), own_pid=99) == ["python3 (pid 10)"]


def test_under_wsl_everybody_has_the_same_device(machine):
    Path(machine.path("/dev")).mkdir()
    Path(machine.path("/dev/dxg")).touch()
    process(machine, 10, "python3", "/dev/dxg")
    process(machine, 11, "Xwayland", "/dev/dxg")
    process(machine, 12, "python3", "/dev/dxg", command="python3\0-m\0wslgpud.probes.nvml_probe\0")

    assert users(OwnedFiles(machine), own_pid=99) == ["python3 (pid 10)"]


def test_a_program_loading_torch_is_seen_before_it_uses_the_gpu(machine):
    torch = "7f00-7f01 r-xp 0 08:01 1 /venv/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so"
    process(machine, 10, "old", "/dev/null", maps=torch)
    known = machine.names("/proc")
    process(machine, 11, "python3", "/dev/null", maps=torch)
    process(machine, 12, "bash", "/dev/null", maps="7f00-7f01 r-xp 0 08:01 1 /usr/lib/libc.so.6")
    process(machine, 13, "worker", "/dev/null", maps=torch, parent=99)

    assert users(OwnedFiles(machine), 99, known) == ["python3 (pid 11)"]


def test_a_strangers_training_is_seen_by_its_maps_alone(machine, monkeypatch):
    """The daemon may see what others have loaded, not which files they have open."""
    process(machine, 11, "python3", "/dev/null", maps="7f0 r-xp /venv/torch/lib/libtorch_cuda.so\n")
    names = machine.names

    def listed(path, max_entries=None):
        if path.endswith("/fd"):
            raise SourceError("cannot list {path}: permission denied", path=path)
        return names(path, max_entries)

    monkeypatch.setattr(machine, "names", listed)

    assert users(OwnedFiles(machine), 99, frozenset()) == ["python3 (pid 11)"]


def test_a_monitor_that_starts_meanwhile_is_left_alone(machine):
    """nvidia-smi asks CUDA's library for its version, also when it is started through the loader."""
    cuda = "7f0 r-xp /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04\n"
    monitor = cuda + "7f1 r-xp /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.159.04\n"
    process(machine, 21, "nvidia-smi", "/dev/null", maps=cuda)
    process(machine, 22, "ld-linux-x86-64", "/dev/null", maps=monitor)
    process(machine, 23, "vector_add", "/dev/null", maps=cuda)
    process(
        machine,
        24,
        "python3",
        "/dev/null",
        maps=monitor + "7f2 r-xp /venv/torch/lib/libtorch_cuda.so\n",
        command="python3\0/home/me/train.py\0--epochs\0",
    )

    assert users(OwnedFiles(machine), 99, frozenset()) == ["python3 train.py (pid 24)", "vector_add (pid 23)"]


@pytest.mark.parametrize(
    ("supplies", "answer"),
    [
        ({}, None),
        ({"AC1": {"type": "Mains", "online": "1"}, "BAT1": {"type": "Battery", "status": "Full"}}, False),
        ({"AC1": {"type": "Mains", "online": "0"}, "BAT1": {"type": "Battery", "status": "Discharging"}}, True),
        ({"AC1": {"type": "Mains", "online": "0"}, "AC2": {"type": "Mains", "online": "1"}}, False),
        ({"AC1": {"type": "Mains"}, "BAT1": {"type": "Battery", "status": "Discharging"}}, True),
        ({"BAT1": {"type": "Battery", "status": "Discharging"}}, True),
        ({"hidpp_battery_0": {"type": "Battery", "scope": "Device", "status": "Discharging"}}, None),
    ],
    ids=["desktop", "plugged in", "unplugged", "one of two", "mute mains", "no mains listed", "desktop with a mouse"],
)
def test_power_is_asked_from_the_kernel(machine, supplies, answer):
    for name, files in supplies.items():
        folder = Path(machine.path(f"/sys/class/power_supply/{name}"))
        folder.mkdir(parents=True)
        for file, text in files.items():
            (folder / file).write_text(text + "\n")

    assert on_battery(machine) is answer


def test_a_training_that_holds_the_lock_keeps_runs_away(tmp_path):
    lock = GpuLock(0, tmp_path)
    with lock.held() as ours:
        assert ours
    training = subprocess.Popen(
        ["flock", "-s", lock.path, "sh", "-c", "echo training; cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    training.stdout.readline()
    try:
        with lock.held() as ours:
            assert not ours
    finally:
        training.communicate(b"")


def test_the_lock_of_another_users_training_can_be_read_only(tmp_path):
    lock = GpuLock(0, tmp_path)
    subprocess.run(["flock", "-s", lock.path, "true"], umask=0o022, check=True)
    descriptor = lock._open()
    mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    os.close(descriptor)

    assert mode == os.O_RDONLY


def test_a_training_that_comes_during_a_run_is_seen_waiting(tmp_path):
    lock, host = GpuLock(0, tmp_path), Host()
    with lock.held():
        assert not lock.wanted(host)
        training = subprocess.Popen(["flock", "-s", lock.path, "echo", "training"], stdout=subprocess.PIPE)
        eventually(lambda: lock.wanted(host), "the training's waiting")
    assert training.communicate()[0] == b"training\n"
    assert lock.path.stat().st_mode & 0o777 == 0o666


def test_a_worker_that_hangs_is_remembered_until_it_is_gone(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    note_hung(tmp_path, Host(), child.pid)
    stood = still_hung(tmp_path, Host())
    child.communicate(b"\n")

    assert stood
    assert not still_hung(tmp_path, Host())


def test_a_worker_that_hung_before_a_reboot_is_forgotten(tmp_path):
    note_hung(tmp_path, Host(), os.getpid())
    (note,) = tmp_path.iterdir()
    note.write_text(note.read_text().replace('"boot": "', '"boot": "another'))

    assert not still_hung(tmp_path, Host())
    assert not note.exists()


def test_a_card_has_the_driver_that_its_last_sample_names():
    recent = Recent()
    for mono, version in enumerate(("576.88", "581.15")):
        labels = [version if name == "driver_version" else "GPU-1" for name in INFO.labels]
        reading = Reading(INFO, 1, tuple(labels))
        recent.add(mono, [gpu()], lambda reading=reading: [reading])

    assert [recent.driver("GPU-1"), recent.driver("GPU-2")] == ["581.15", ""]
    assert (recent.last("GPU-2"), recent.last("GPU-1")) == (None, (1, gpu()))


def test_a_program_using_the_gpu_is_seen_behind_many_open_files(machine):
    process(machine, 10, "python3", "/dev/null")
    folder = Path(machine.path("/proc/10/fd"))
    for number in range(100, 200):
        (folder / str(number)).symlink_to("/dev/null" if number < 199 else "/dev/nvidia-uvm")
    Path(machine.path("/proc/10/status")).write_text("Uid:\t0\t0\t0\t0\n")

    assert users(OwnedFiles(machine), own_pid=99) == ["python3 (pid 10)"]


def test_the_last_minutes_are_kept_by_gpu():
    recent = Recent()
    for second in range(100):
        events = [Event("clock_jump", 0.0, "")] if second == 50 else []
        recent.add(float(second), [gpu(used_bytes=second), gpu(uuid="GPU-2", index=1)], tuple, events)

    assert [s.used_bytes for s in recent.samples("GPU-1")] == [*range(69, 100)], "the 30 s in which it must be idle"
    assert [(s.index, s.used_bytes) for s in recent.gpus()] == [(0, 99), (1, gpu().used_bytes)]
    assert recent.last_jump_mono == 50.0
    assert recent.samples("GPU-3") == []


def test_what_the_kernel_says_of_an_ill_card_is_remembered():
    """From the kernel's own line on: a run that begins right after would test a card that has fallen off."""
    recent = Recent()
    log = KernelLogSource(RecordedHost(HERE / "gpu-lost"), Config())
    recent.add(7.0, [], tuple, log.read().events)
    log.close()

    assert recent.last_error_mono == 7.0
