"""The last lines of a failed program, as real ones ended, tell what helps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wslgpud.advise.guard.failures import TAIL_BYTES, recognised

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


@pytest.mark.parametrize("thread", ENDS)
def test_what_is_known_is_named_with_what_helps(thread: str) -> None:
    output, begins = ENDS[thread]

    assert str(recognised(f"\x1b[31mTraceback\x1b[0m\n{output}\n".encode(), wsl=True)).startswith(begins)


def test_a_refused_allocation_with_room_left_points_to_windows() -> None:
    refused = TORCH.format(asked="148.00 MiB", free="6.15 GiB").encode()

    assert str(recognised(refused, wsl=True)).startswith("CUDA reports out of memory with VRAM free")
    kibibytes = TORCH.format(asked="1.50 MiB", free="1600.00 KiB").encode()
    assert str(recognised(kibibytes, wsl=True)).startswith("CUDA reports out of memory with VRAM free")
    # Of native Linux that says fragments or another limit, and nothing of Windows.
    assert str(recognised(refused, wsl=False)).startswith("VRAM ran out")
    # The last word counts: the first allocation may have been caught.
    last = refused + b"\n" + TORCH.format(asked="2.00 GiB", free="2.00 GiB").encode()
    assert str(recognised(last, wsl=True)).startswith("VRAM ran out")


@pytest.mark.parametrize(("smaller", "larger"), [("KiB", "MiB"), ("MiB", "GiB")])
def test_room_left_means_more_free_than_asked_for_in_any_unit(smaller: str, larger: str) -> None:
    for asked, free, refused in (
        (f"1023.00 {smaller}", f"1.00 {larger}", True),
        (f"1024.00 {smaller}", f"1.00 {larger}", False),
        (f"1.00 {larger}", f"1025.00 {smaller}", True),
        (f"1.00 {larger}", f"1024.00 {smaller}", False),
    ):
        said = str(recognised(TORCH.format(asked=asked, free=free).encode(), wsl=True))
        assert said.startswith("CUDA reports out of memory with VRAM free" if refused else "VRAM ran out")


@pytest.mark.parametrize(
    "thread", ["microsoft/WSL#8447", "abetlen/llama-cpp-python#229", "saharmor/dalle-playground#88"]
)
def test_a_pinning_error_on_native_linux_does_not_blame_windows(thread: str) -> None:
    said = str(recognised(ENDS[thread][0].encode(), wsl=False))

    assert said.startswith("the driver could not pin that much RAM")
    assert "Windows" not in said


def test_a_driver_upgrade_on_native_linux_does_not_blame_windows() -> None:
    said = str(recognised(b"Failed to initialize NVML: Driver/library version mismatch\n", wsl=False))

    assert said.endswith("restart the machine")
    assert "Windows" not in said


@given(st.binary(max_size=TAIL_BYTES))
def test_no_output_however_odd_is_a_fault_of_ours(output: bytes) -> None:
    recognised(output, wsl=True)


def test_what_nobody_knows_is_not_explained() -> None:
    assert recognised(b"AssertionError: expected 3, got 4\n", wsl=True) is None
    # What was printed long before the end is not why it ended.
    end = 16 << 10
    assert recognised(b"MemoryError" + b"\n" * (end - len("MemoryError")), wsl=True) is not None
    assert recognised(b"MemoryError" + b"\n" * (end - len("MemoryError") + 1), wsl=True) is None
