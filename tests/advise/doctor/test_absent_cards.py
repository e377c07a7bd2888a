"""What the doctor says of cards that are lost, kept from us, larger than RAM, or upset at the start of WSL."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advise.doctor.conftest import outcome
from tests.hosts.machines import HERE
from wslgpud.advise.doctor import run
from wslgpud.advise.doctor.checking import Gpus, WslConfig
from wslgpud.advise.doctor.checks_gpu import PAGE_FILE
from wslgpud.config import Config, Sampling
from wslgpud.host import RecordedHost
from wslgpud.model import GpuSample
from wslgpud.probes.wsl_config import parse
from wslgpud.sources import windows

GIB = 1 << 30
WSL = {"/dev/dxg": "", "/proc/meminfo": f"MemTotal: {32 * GIB >> 10} kB\n"}
CARD = GpuSample(0, "GPU-1", "RTX", 16 * GIB, 0)
SERVICE = "nvidia-cdi-refresh.service"


def findings(name, *, of_windows=False):
    config = Config(sampling=Sampling(gpu_timeout_seconds=60.0))
    return {f.id: f for f in run(RecordedHost(HERE / name), config, windows=of_windows)}


@pytest.mark.parametrize(
    ("files", "error", "remedy"),
    [
        ({}, "UNKNOWN", "restart the machine and look for Xid 79"),
        ({}, "GPU_IS_LOST", "restart the machine and look for Xid 79"),
        ({}, "RESET_REQUIRED", "end the programs that use it and run 'nvidia-smi --gpu-reset'"),
        (WSL, "UNKNOWN", "run 'wsl --shutdown' in Windows"),
        (WSL, "RESET_REQUIRED", "restart Windows"),
    ],
)
def test_a_lost_card_is_a_problem_though_another_answers(machine, files, error, remedy):
    here = machine(files)
    here.gpus = Gpus((CARD,), lost={"1": error})
    state, found, told = outcome("gpu.visible", here)

    assert (state, str(found)) == ("problem", f"GPU 1 (NVML_ERROR_{error}) does not answer; RTX (16 GiB)")
    assert str(told).startswith(remedy)


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        ({"denied": True}, "NVML refuses it to this user or container, as for a card divided by MIG"),
        ({"divided": frozenset({"0"})}, "the card is divided into instances (MIG)"),
        ({"divided": frozenset({"0"}), "denied": True}, "the card is divided into instances (MIG)"),
        ({"divided": frozenset({"1"})}, ""),
        ({}, ""),
    ],
)
def test_why_a_cards_memory_is_unknown_is_told(machine, gpus, why):
    # https://github.com/NVIDIA/nvidia-container-toolkit/issues/842, https://github.com/ollama/ollama/issues/932.
    # Without a reason the card shares the machine's RAM: https://github.com/Syllo/nvtop/issues/426
    here = machine()
    here.gpus = Gpus((replace(CARD, total_bytes=None),), **gpus)
    said = outcome("gpu.visible", here)

    assert (said.state, str(said.found)) == (("note", f"RTX: memory unknown: {why}") if why else ("good", "RTX"))
    assert ("NVIDIA_MIG_MONITOR_DEVICES=all" in str(said.remedy)) is bool(why)


@pytest.mark.parametrize(
    ("vram", "wslconfig", "state"),
    [
        # https://github.com/microsoft/WSL/issues/40678
        (96, "[wsl2]\nmemory=32GB\n", "note"),
        (33, "[wsl2]\nmemory=32GB\n", "note"),
        (32, "[wsl2]\nmemory=32GB\n", "good"),
        # without memory= WSL has half of Windows' RAM
        (64, "", "good"),
        (65, "", "note"),
        (65, "[wsl2]\nswap=8GB\n", "note"),
        (64, None, "note"),
    ],
)
def test_more_vram_than_windows_surely_has_ram_is_noted(machine, vram, wslconfig, state):
    here = machine(WSL)
    here.gpus = Gpus((CARD, replace(CARD, index=1, total_bytes=vram * GIB)))
    here.wslconfig = WslConfig(error="no drive") if wslconfig is None else WslConfig("x", parse(wslconfig))
    said = outcome("gpu.page_file", here)

    assert said.state == state
    assert (str(PAGE_FILE) in str(said.remedy)) is (state == "note")


@pytest.mark.parametrize(
    ("ram", "file", "vram", "state"),
    [
        (64, 9, 96, "problem"),  # https://github.com/microsoft/WSL/issues/40678
        (16, 16, 48, "problem"),  # https://github.com/victorchall/EveryDream2trainer/issues/163
        (16, 50, 48, "good"),  # as it was mended there
        (8, 2, 12, "problem"),  # https://github.com/ollama/ollama/issues/8825
        (8, 16, 12, "good"),
        (32, 40, 24, "good"),  # https://github.com/AUTOMATIC1111/stable-diffusion-webui/issues/5252
        (16, 32, 4, "good"),  # the page file was not to blame: https://github.com/oatsu-gh/enunu_training_kit/issues/8
        (64, 0, 64, "good"),
    ],
)
def test_windows_page_file_is_held_against_the_largest_card(machine, ram, file, vram, state):
    here = machine(WSL)
    here.gpus = Gpus((replace(CARD, total_bytes=vram * GIB), CARD))
    here.windows_facts = windows.Facts({windows.TOTAL: ram * GIB, windows.COMMIT_LIMIT: (ram + file) * GIB}, (), {})
    said = outcome("windows.page_file", here)

    assert said.state == state
    assert (said.remedy == PAGE_FILE) is (state == "problem")


@pytest.mark.parametrize(
    ("folder", "capability", "state"),
    [
        ("/usr/lib/systemd/system", "12.0", "note"),  # https://github.com/microsoft/WSL/issues/14452
        ("/lib/systemd/system", "10.0", "note"),
        ("/etc/systemd/system", "12.0", "note"),
        ("/usr/lib/systemd/system", "8.9", "not applicable"),
        ("/elsewhere", "12.0", "good"),
    ],
)
def test_a_probe_of_cuda_at_the_start_is_noted_on_blackwell(machine, folder, capability, state):
    here = machine({**WSL, f"{folder}/{SERVICE}": "[Service]\n"})
    here.gpus = Gpus((CARD,), ({"compute_capability": capability},))
    said = outcome("gpu.cdi_refresh", here)

    assert said.state == state
    assert ("systemctl mask --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service" in str(said.remedy)) is (
        state == "note"
    )


def test_recorded_machines_get_these_findings():
    assert findings("gpu-unreachable")["gpu.visible"].state == "problem"
    assert findings("mig-container")["gpu.visible"].state == "note"
    assert findings("two-gpus")["gpu.visible"].state == "good"
    none = findings("no-card")["gpu.visible"]
    assert (none.state, str(none.found)) == ("problem", "the NVIDIA driver works, but shows no GPU")
    assert "install the NVIDIA driver" not in str(none.remedy)
    assert "device manager" in str(none.remedy)
    large = findings("vram-above-ram")
    assert (large["gpu.page_file"].state, large["gpu.cdi_refresh"].state) == ("note", "note")
    assert findings("vram-above-ram", of_windows=True)["windows.page_file"].state == "problem"
