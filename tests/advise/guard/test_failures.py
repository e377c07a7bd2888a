"""The last lines of a failed program, as real ones ended, tell what helps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wslgpud.advise.guard import summary
from wslgpud.advise.guard.relay import TAIL_BYTES
from wslgpud.advise.guard.summary import explanation
from wslgpud.advise.guard.usage import CardUse, RunStats
from wslgpud.toml import tomllib

TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of 15.92 GiB of "
    "which {free} is free. Of the allocated memory 5.10 GiB is allocated by PyTorch, and 1.2 GiB is reserved"
)
#: what a program printed at its end, by the thread that has it, and how the advice begins
ENDS = {
    "microsoft/WSL#41176": ("RuntimeError: CUDA driver error: device not ready", "the card's memory was used up"),
    "microsoft/WSL#8447": (
        '  File "torch/utils/data/_utils/pin_memory.py", line 50\nRuntimeError: CUDA error: out of memory',
        "CUDA reports out of memory with VRAM free",
    ),
    "abetlen/llama-cpp-python#229": (
        "WARNING: failed to allocate 512.00 MB of pinned memory: out of memory\nCUDA error 2 at ggml-cuda.cu:781",
        "CUDA reports out of memory with VRAM free",
    ),
    "pytorch/pytorch#8976": (
        "RuntimeError: DataLoader worker (pid 8932) is killed by signal: Killed. ",
        "RAM ran out and the kernel killed a data loader's worker",
    ),
    "pytorch/pytorch#108861": (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        "shared memory (/dev/shm) is full",
    ),
    "google/or-tools#4229": (
        "c++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.",
        "a compiler ran out of RAM",
    ),
    "saharmor/dalle-playground#88": (
        (
            "failed to alloc 245638656 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"
            "could not allocate pinned host memory of size: 245638656"
        ),
        "CUDA reports out of memory with VRAM free",
    ),
    "microsoft/WSL#9938": (
        "Failed to initialize NVML: GPU access blocked by the operating system",
        "the GPU driver does not respond properly",
    ),
    "microsoft/WSL#9490": (
        "Catastrophic failure\nError code: Wsl/Service/E_UNEXPECTED",
        "WSL's service in Windows failed",
    ),
    "microsoft/WSL#10194": ("OSError: [Errno 28] No space left on device", "a disk is full"),
    "pytorch/pytorch#21819": (
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "a CUDA kernel of the program failed, not for lack of memory",
    ),
    "microsoft/WSL#5809": (
        "MemoryError: Unable to allocate 9.40 GiB for an array with shape (50229, 50229) and data type float32",
        "the program could not allocate more RAM",
    ),
    "MIC-DKFZ/nnUNet#2213": (
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 1.61 GiB for an array with shape (753, 536, 536)",
        "the program could not allocate more RAM",
    ),
    "voutcn/megahit#347": (
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
        "the program could not allocate more RAM",
    ),
    "microsoft/qlib#1374": ("OSError: [Errno 12] Cannot allocate memory", "the program could not allocate more RAM"),
    "microsoft/WSL#5295": (
        "cc1plus: out of memory allocating 65536 bytes after a total of 3624960 bytes",
        "a compiler ran out of RAM",
    ),
    "microsoft/WSL#5295, another file": (
        "virtual memory exhausted: Cannot allocate memory",
        "a compiler ran out of RAM",
    ),
    "pytorch/pytorch#5040": (
        "RuntimeError: DataLoader worker (pid 13) is killed by signal: Bus error.",
        "shared memory (/dev/shm) is full",
    ),
    "microsoft/WSL#11755": ("Failed to initialize NVML: N/A", "the GPU driver does not respond properly"),
    "NVIDIA/nvidia-container-toolkit#817": (
        "Failed to initialize NVML: Unknown Error",
        "the GPU driver does not respond properly",
    ),
    "microsoft/WSL#8174": (
        "cudaGetDeviceCount returned 35\n-> CUDA driver version is insufficient for CUDA runtime version",
        "the GPU driver does not respond properly",
    ),
    "illinois-scicomp/machine-shop-maintenance#70": (
        "Failed to initialize NVML: Driver/library version mismatch",
        "the GPU driver does not respond properly",
    ),
    "karpathy/nanoGPT#470": (
        "RuntimeError: CUDA error: device-side assert triggered",
        "a CUDA kernel of the program failed, not for lack of memory",
    ),
    # As Windows 11 says it in German and in Chinese.
    "microsoft/WSL#12810": (
        "Schwerwiegender Fehler\nFehlercode: Wsl/Service/E_UNEXPECTED",
        "WSL's service in Windows failed",
    ),
    "microsoft/WSL#13966": ("灾难性故障\n错误代码: Wsl/Service/E_UNEXPECTED", "WSL's service in Windows failed"),
    "microsoft/WSL#40638": ("Error code: Wsl/Service/CreateInstance/E_UNEXPECTED", "WSL's service in Windows failed"),
    "pytorch/pytorch#16417": (TORCH.format(asked="2.00 GiB", free="1.10 GiB"), "VRAM ran out"),
}


def said_of(output: bytes, *, wsl: bool = True, **measured: Any) -> str:
    """Return what is said of a failed program's last lines, and of what was measured."""
    lines = explanation(output, RunStats(**{"code": 1, **measured}), wsl=wsl)
    return "; ".join(str(line).removeprefix("by its last lines: ") for line in lines)


@pytest.mark.parametrize("thread", ENDS)
def test_what_is_known_is_named_with_what_helps(thread: str) -> None:
    output, begins = ENDS[thread]

    assert said_of(f"\x1b[31mTraceback\x1b[0m\n{output}\n".encode(), wsl=True).startswith(begins)


def test_a_refused_allocation_with_room_left_points_to_windows() -> None:
    refused = TORCH.format(asked="148.00 MiB", free="6.15 GiB").encode()

    assert said_of(refused, wsl=True).startswith("CUDA reports out of memory with VRAM free")
    kibibytes = TORCH.format(asked="1.50 MiB", free="1600.00 KiB").encode()
    assert said_of(kibibytes, wsl=True).startswith("CUDA reports out of memory with VRAM free")
    # Of native Linux that says fragments or another limit, and nothing of Windows.
    assert said_of(refused, wsl=False).startswith("VRAM ran out")
    # The last word counts: the first allocation may have been caught.
    last = refused + b"\n" + TORCH.format(asked="2.00 GiB", free="2.00 GiB").encode()
    assert said_of(last, wsl=True).startswith("VRAM ran out")


@pytest.mark.parametrize(("smaller", "larger"), [("KiB", "MiB"), ("MiB", "GiB")])
def test_room_left_means_more_free_than_asked_for_in_any_unit(smaller: str, larger: str) -> None:
    for asked, free, refused in (
        (f"1023.00 {smaller}", f"1.00 {larger}", True),
        (f"1024.00 {smaller}", f"1.00 {larger}", False),
        (f"1.00 {larger}", f"1025.00 {smaller}", True),
        (f"1.00 {larger}", f"1024.00 {smaller}", False),
    ):
        said = said_of(TORCH.format(asked=asked, free=free).encode(), wsl=True)
        assert said.startswith("CUDA reports out of memory with VRAM free" if refused else "VRAM ran out")


@pytest.mark.parametrize(
    "thread", ["microsoft/WSL#8447", "abetlen/llama-cpp-python#229", "saharmor/dalle-playground#88"]
)
def test_a_pinning_error_on_native_linux_does_not_blame_windows(thread: str) -> None:
    said = said_of(ENDS[thread][0].encode(), wsl=False)

    assert said.startswith("the driver could not pin that much RAM")
    assert "Windows" not in said


@given(st.binary(max_size=TAIL_BYTES))
def test_no_output_however_odd_is_a_fault_of_ours(output: bytes) -> None:
    said_of(output)


def test_what_nobody_knows_is_not_explained() -> None:
    assert said_of(b"AssertionError: expected 3, got 4\n") == ""
    # What was printed long before the end is not why it ended.
    end = 16 << 10
    assert said_of(b"MemoryError" + b"\n" * (end - len("MemoryError")))
    assert said_of(b"MemoryError" + b"\n" * (end - len("MemoryError") + 1)) == ""


GIB = 1 << 30
OUT_OF_MEMORY = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
ILLEGAL = b"RuntimeError: CUDA error: an illegal memory access was encountered\n"


def card(*used_gib: float, index: int = 0) -> CardUse:
    """Return a card in whose last seconds so much was in use."""
    made = CardUse(index, f"GPU-{index}", 16 * GIB, 0)
    for used in used_gib:
        made.note(int(used * GIB))
    return made


def test_a_full_card_is_told_whatever_the_program_said() -> None:
    assert said_of(b"AssertionError", cards=[card(15.3)]) == "GPU 0 was full at the end: 15 of 16 GiB in use"
    assert said_of(ILLEGAL, cards=[card(4), card(15.9, index=1)]).endswith(
        "; GPU 1 was full at the end: 16 of 16 GiB in use"
    )
    assert said_of(b"AssertionError", cards=[card(15.1)]) == ""
    # It is said once.
    assert said_of(OUT_OF_MEMORY, cards=[card(15.9)]) == "VRAM ran out: a smaller batch or a shorter context"


def test_a_half_empty_card_did_not_run_out() -> None:
    assert said_of(OUT_OF_MEMORY, cards=[card(7.9)]).startswith("CUDA reports out of memory with VRAM free")
    assert said_of(OUT_OF_MEMORY, wsl=False, cards=[card(7.9)]).startswith(
        "out of memory is reported with no card even"
    )
    assert said_of(OUT_OF_MEMORY, cards=[card(8.1)]).startswith("VRAM ran out")
    assert said_of(OUT_OF_MEMORY, cards=[card(2), card(15, index=1)]).startswith("VRAM ran out"), "one of them may have"
    filling = card(3, 6)
    assert said_of(OUT_OF_MEMORY, cards=[filling]).startswith("VRAM ran out"), "it may have been full a second later"


@pytest.mark.parametrize(("asked", "begins"), [("11.9", "CUDA reports out"), ("12.1", "VRAM ran out")])
def test_an_allocation_larger_than_the_rest_does_run_out(asked: str, begins: str) -> None:
    output = OUT_OF_MEMORY.replace(b"2.00", asked.encode())

    assert said_of(output, cards=[card(4)]).startswith(begins)


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ({"oom_kills": 1}, "the kernel killed one of its processes: RAM ran out"),
        ({"least_available_bytes": GIB // 4, "total_bytes": 8 * GIB}, "at the lowest, 256 MiB of 8.0 GiB was left"),
        ({"least_available_bytes": 4 * GIB, "total_bytes": 8 * GIB}, "at the lowest, 4.0 of 8.0 GiB was left"),
        ({}, "one of its processes was killed (SIGKILL), as the kernel does when RAM or a cgroup's limit runs out"),
    ],
)
def test_a_killed_child_is_judged_by_what_was_measured(measured: dict[str, int], said: str) -> None:
    assert said in said_of(b"  traceback : Signal 9 (SIGKILL) received by PID 14216", **measured)


def test_a_program_killed_itself_is_told_from_one_that_failed() -> None:
    assert said_of(b"step 12", code=137).startswith("one of its processes was killed (SIGKILL)")
    assert said_of(b"step 12", code=137, oom_kills=1) == "", "the summary counts the kernel's own kills"
    assert said_of(b"step 12", code=135).startswith("shared memory (/dev/shm) is full")
    assert said_of(b"step 12", code=139) == ""


def test_a_warning_that_was_no_failure_is_not_taken_for_one() -> None:
    harmless = (
        b"W tensorflow/core/common_runtime/bfc_allocator.cc:243] Allocator (GPU_0_bfc) ran out of memory trying to "
        b"allocate 3.03GiB. The caller indicates that this is not a failure, but may mean that there could be "
        b"performance gains if more memory were available.\nValueError: shapes (3,) and (4,) do not match\n"
    )
    assert said_of(harmless) == ""


ROWS = tomllib.loads(Path(summary.__file__).with_name("failures.toml").read_text())["row"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["cause"])
def test_every_wording_has_advice_and_a_thread_that_has_it(row: dict[str, Any]) -> None:
    assert row["cause"] in {*summary.failures()["advice"], "harmless"}
    assert row["threads"]
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", thread) for thread in row["threads"])
