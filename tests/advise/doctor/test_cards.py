"""What the doctor says of cards, their driver and the torches for them, at the limits of each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advise.doctor.conftest import outcome
from wslgpud.advise.doctor.checking import Gpus, TorchFacts
from wslgpud.model import GpuProcess, GpuSample

WSL = {"/dev/dxg": ""}
GIB = 1 << 30
CARD = GpuSample(0, "GPU-1", "RTX", 16 * GIB, 0)
TORCH = TorchFacts(
    "/t/bin/python", "2.7.1+cu128", "12.8", ("sm_80", "sm_120"), ("8.0",), ran=True, tf32=True, cudnn=90701
)
WHEELS = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu128"
FAST = "torch.set_float32_matmul_precision('high'); torch.backends.cudnn.benchmark = True"


def cards(*capabilities: str, cuda: str = "") -> Gpus:
    identities = tuple({"compute_capability": one, "cuda_version": cuda} for one in capabilities)
    return Gpus((CARD,) * len(capabilities), identities)


@pytest.mark.parametrize(
    ("card", "older", "first"),
    [
        ("12.0", "12.7", "12.8"),
        ("10.0", "12.7", "12.8"),
        ("9.0", "11.7", "11.8"),
        ("8.9", "11.7", "11.8"),
        ("8.6", "", "11.0"),
    ],
)
def test_each_card_needs_the_cuda_that_first_compiles_for_it(machine, card, older, first):
    """NVIDIA's release notes: https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/."""
    name = f"sm_{card.replace('.', '')}"

    def toolkit(version: str) -> tuple[str, str]:
        found = machine({"/usr/local/cuda/version.json": f'{{"cuda": {{"name": "CUDA", "version": "{version}.1"}}}}'})
        found.gpus = cards(card)
        said = outcome("cuda.toolkit", found)
        return said.state, str(said.found)

    assert toolkit(first) == ("good", f"CUDA {first}.1")
    if older:
        assert toolkit(older) == ("problem", f"CUDA {older}.1 cannot compile for {name}")

        found = machine()
        found.gpus = cards(card, cuda=older)
        state, said, remedy = outcome("gpu.cuda", found)
        assert (state, str(said), str(remedy)) == (
            "problem",
            f"the driver supports CUDA {older}; {name} needs {first}",
            "update the NVIDIA driver",
        )


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"/usr/local/cuda/version.json": "{}"}, None),
        ({"/usr/local/cuda/version.json": '{"cuda": {"version": '}, None),
        ({"/usr/local/cuda/bin/nvcc": ""}, None),
        (
            {"/usr/local/cuda/bin/nvcc": "", "/usr/local/cuda/include/cuda.h": "\n#define CUDA_VERSION 12090\n"},
            "CUDA 12.9",
        ),
    ],
)
def test_the_version_of_a_toolkit_is_that_of_its_files(machine, files, version):
    found = machine(files)
    found.gpus = Gpus()
    state, said, _ = outcome("cuda.toolkit", found)

    unknown = ("could not tell", "/usr/local/cuda/version.json contains no version")
    assert (state, str(said)) == (("good", version) if version else unknown)


@pytest.mark.parametrize(("cuda", "state"), [("12.4", "good"), ("13.0", "note"), ("11.8", "note"), ("", "good")])
def test_extensions_take_a_toolkit_of_the_major_version_of_torch(machine, cuda, state):
    found = machine({"/usr/local/cuda/version.json": '{"cuda": {"version": "12.8.1"}}'})
    found.gpus, found.torches = Gpus(), (replace(TORCH, cuda=cuda),)
    said = outcome("cuda.toolkit", found)

    mismatch = f"CUDA 12.8.1, but torch 2.7.1+cu128 is built with {cuda}: extensions will not compile"
    assert (said.state, str(said.found)) == (state, mismatch if state == "note" else "CUDA 12.8.1")


@pytest.mark.parametrize(
    ("capabilities", "torch", "state", "remedy"),
    [
        (["8.0"], {"tf32": False}, "note", FAST),
        (["7.5"], {"tf32": False}, "good", ""),
        (["7.5", "8.0"], {"tf32": False}, "note", FAST),
        (["8.0"], {}, "good", ""),
        (["8.0"], {"cudnn": None}, "note", WHEELS),
        (["8.0"], {"ran": False}, "not applicable", ""),
    ],
)
def test_tf32_is_advised_on_cards_that_have_it(machine, capabilities, torch, state, remedy):
    found = machine()
    found.gpus, found.torches = cards(*capabilities), (replace(TORCH, **torch),)
    said = outcome("torch.speed", found)

    assert (said.state, said.remedy) == (state, remedy)


@pytest.mark.parametrize(
    ("files", "used", "state", "found"),
    [
        (WSL, "/usr/lib/wsl/lib/libnvidia-ml.so.1", "good", "/usr/lib/wsl/lib/libnvidia-ml.so.1"),
        (WSL, "/opt/libnvidia-ml.so.1", "good", "/opt/libnvidia-ml.so.1"),
        (WSL, "", "not applicable", "none is in use"),
        ({}, "/usr/lib64/libnvidia-ml.so.1", "good", "/usr/lib64/libnvidia-ml.so.1"),
        (
            {**WSL, "/usr/lib64/libnvidia-ml.so.1": ""},
            "/usr/lib64/libnvidia-ml.so.1",
            "problem",
            "/usr/lib64/libnvidia-ml.so.1 is loaded instead of WSL's own",
        ),
        (
            {**WSL, "/usr/lib64/libnvidia-ml.so.1": ""},
            "/usr/lib/wsl/lib/libnvidia-ml.so.1",
            "note",
            "besides WSL's own there is /usr/lib64/libnvidia-ml.so.1: programs that load it find no card",
        ),
        ({"/usr/lib64/libnvidia-ml.so.1": ""}, "", "not applicable", "none is in use"),
        (
            {},
            "/usr/local/cuda/lib64/stubs/libnvidia-ml.so.1",
            "problem",
            "/usr/local/cuda/lib64/stubs/libnvidia-ml.so.1 is a stub, for linking only",
        ),
    ],
)
def test_a_library_in_front_of_wsls_own_is_told(machine, files, used, state, found):
    here = machine(files)
    here.gpus = Gpus(library=used)
    said = outcome("gpu.library", here)

    assert (said.state, str(said.found)) == (state, found)


@pytest.mark.parametrize(
    ("capabilities", "torch", "state", "found"),
    [
        ([], {}, "good", "torch has code for sm_80"),
        (["12.0", "12.0"], {}, "good", "torch has code for sm_120"),
        (["9.0"], {}, "problem", "torch 2.7.1+cu128 in /t/bin/python has no sm_90"),
        (["12.1"], {"architectures": ("sm_90",)}, "problem", "torch 2.7.1+cu128 in /t/bin/python has no sm_121"),
        (
            ["9.0", "12.0"],
            {"architectures": ("sm_90",)},
            "problem",
            "torch 2.7.1+cu128 in /t/bin/python has no sm_120 (RTX 50 cards need CUDA 12.8 and torch 2.7)",
        ),
        (["9.0"], {"architectures": ()}, "could not tell", "torch was not checked"),
        (["9.0"], {"cuda": ""}, "note", "torch 2.7.1+cu128 in /t/bin/python is built without CUDA"),
        (["9.0"], {"cuda": "", "failure": "killed"}, "could not tell", "torch was not checked"),
    ],
)
def test_a_build_without_code_for_a_card_is_told_with_the_card(machine, capabilities, torch, state, found):
    here = machine()
    here.gpus, here.torches = cards(*capabilities), (replace(TORCH, **torch),)
    said = outcome("torch.architecture", here)

    assert (said.state, str(said.found)) == (state, found)


@pytest.mark.parametrize(
    ("files", "torch", "state", "found", "remedy"),
    [
        ({}, {}, "good", "torch 2.7.1+cu128 (CUDA 12.8)", ""),
        ({}, {"cuda": "", "ran": False}, "not applicable", "no torch runs on the card", ""),
        (WSL, {"ran": False}, "problem", "/t/bin/python: it computes wrong results", "wsl --shutdown   # in Windows"),
        (
            {},
            {"ran": False, "capabilities": ()},
            "problem",
            "/t/bin/python: torch sees no CUDA device",
            "check whether nvidia-smi works; if it does not, restart the machine",
        ),
        ({}, {"ran": False, "kernel": "no kernel image"}, "problem", "/t/bin/python: no kernel image", WHEELS),
        (WSL, {"cuda": "", "failure": "killed"}, "problem", "/t/bin/python: killed", "wsl --shutdown   # in Windows"),
    ],
)
def test_why_no_kernel_runs_is_told(machine, files, torch, state, found, remedy):
    here = machine(files)
    here.torches = (replace(TORCH, **torch),)
    said = outcome("torch.kernel", here)

    assert (said.state, str(said.found), str(said.remedy)) == (state, found, remedy)


@pytest.mark.parametrize(
    ("files", "used", "processes", "state", "found"),
    [
        ({}, GIB - 1, (), "good", "less than 1.0 GiB"),
        ({}, GIB, (), "note", "GPU 0: 1.0 GiB held although no program here uses it"),
        ({}, None, (), "could not tell", "the driver does not report how much is in use, or by which programs"),
        ({}, GIB, (GpuProcess(1, "python3", None),), "not applicable", "programs here are using GPU 0 now"),
        (WSL, GIB, (GpuProcess(0, "python3", None),), "note", "GPU 0: 1.0 GiB held although no program here uses it"),
        (WSL, GIB, (GpuProcess(7, "/Xwayland", None),), "note", "GPU 0: 1.0 GiB held although no program here uses it"),
    ],
)
def test_a_gibibyte_that_no_program_here_uses_is_the_desktops(machine, files, used, processes, state, found):
    here = machine(files)
    here.gpus = Gpus((replace(CARD, used_bytes=used, processes=processes),))
    said = outcome("gpu.desktop", here)
    graphical = any(process.name == "/Xwayland" for process in processes)
    remedies = {
        "note": "close browsers and games in Windows before training" if files else "nvidia-smi   # shows who",
        "note, with WSLg": "if you need no graphical Linux programs, set guiApplications=false below [wsl2] in "
        ".wslconfig; close browsers and games in Windows before training",
    }

    assert (said.state, str(said.found)) == (state, found)
    assert str(said.remedy) == remedies.get(f"{state}, with WSLg" if graphical else state, "")


@pytest.mark.parametrize(
    ("files", "gpus", "state", "found", "remedy"),
    [
        (WSL, Gpus((CARD,), ({"driver_version": "591.44"},)), "good", "RTX (16 GiB), driver 591.44", ""),
        (WSL, Gpus((replace(CARD, total_bytes=None),)), "good", "RTX", ""),
        ({}, Gpus(error="no library"), "not applicable", "no library", ""),
        (WSL, Gpus(error="no library"), "problem", "no library", "install the NVIDIA driver in Windows"),
        ({"/run/WSL/x": ""}, Gpus(), "problem", "WSL offers no GPU (/dev/dxg is missing)", "remove gpuSupport=false"),
    ],
)
def test_a_card_is_told_with_its_driver_or_why_there_is_none(machine, files, gpus, state, found, remedy):
    here = machine(files)
    here.gpus = gpus
    said = outcome("gpu.visible", here)

    assert (said.state, str(said.found)) == (state, found)
    assert str(said.remedy).startswith(remedy)
    assert bool(said.remedy) is (state == "problem")


@pytest.mark.parametrize(
    ("driver", "torch", "state", "found"),
    [
        ("", {}, "could not tell", "the driver does not report its CUDA version"),
        ("12.8", {}, "good", "the driver supports CUDA 12.8; torch 2.7.1+cu128 (CUDA 12.8)"),
        ("12.8", {"failure": "killed", "cuda": ""}, "good", "the driver supports CUDA 12.8"),
        (
            "12.7",
            {},
            "note",
            (
                "the driver supports CUDA 12.7: torch 2.7.1+cu128 (CUDA 12.8) in /t/bin/python runs, except for code "
                "that must compile PTX"
            ),
        ),
        (
            "11.9",
            {},
            "problem",
            "the driver supports CUDA 11.9, too old for torch 2.7.1+cu128 (CUDA 12.8) in /t/bin/python",
        ),
    ],
)
def test_a_torch_is_too_new_from_the_next_version_on(machine, driver, torch, state, found):
    here = machine()
    here.gpus, here.torches = cards("8.0", cuda=driver), (replace(TORCH, **torch),)
    said = outcome("gpu.cuda", here)

    assert (said.state, str(said.found)) == (state, found)
