"""What a process is for: holding a GPU, training, building; found from its name, files and libraries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Literal

from wslgpud.host import Host, NoData, SourceError
from wslgpud.security.redaction import named

Role = Literal["gpu", "training", "build"]
ROLES: tuple[Role, ...] = ("gpu", "training", "build")

#: open files of a process that are inspected; a process with more hides only its own use of a GPU
MOST_FILES = 2048
_COMMAND_LENGTH = 80

#: The kernel cuts names at 15 characters, hence "x86_64-linux-gn" for a compiler with a long name.
_BUILD_TOOL = re.compile(
    r"nvcc|cicc|ptxas|cudafe\+\+|fatbinary|nvlink|hipcc"
    r"|cc1|cc1plus|cc1obj|lto1|lto-wrapper|collect2|cpp|(.*-)?(gcc|g\+\+|clang|clang\+\+|clang-cl)(-[\d.]+)?"
    r"|(x86_64|aarch64)-linux-gn|as|ld|ld\.(lld|gold|bfd|mold)|lld|mold|ar|ranlib"
    r"|ninja|make|gmake|cmake|meson|bazel|bazel-real|cargo|rustc|rust-lld|go|compile|link|javac|swiftc"
    r"|pip3?(\.\d+)?|uv|pip-build"
)
_PYTHON = re.compile(r"(python|pypy|ipython)[\d.]*")
_BUILD_SCRIPT = re.compile(r"\S+ (-m )?(pip3?|setup\.py|build|_in_process\.py|conda-build)(\s.*)?")
_SOURCE_FILE = re.compile(r".*\.(cu|c|cc|cpp|cxx|rs|ii|i|ptx)")
GPU_DEVICE = re.compile(r"/dev/(dxg|nvidia\d+|nvidiactl|nvidia-uvm)")
#: NVIDIA's files that a program with a CUDA context has mapped
DRIVER = re.compile(r"/libcuda\.so|/dev/nvidia\d")
#: Libraries of which one is loaded when Python trains or serves a model.
FRAMEWORK = re.compile(
    r"/libtorch_|/libtorch\.so|/jaxlib/|/libtensorflow|/tensorflow/|/libpaddle|/libonnxruntime|/libggml"
    r"|/libllama|/cupy/|/libmxnet|/libnvinfer|/tensorrt"
)


def build_tool(name: str) -> bool:
    """Tell whether a program of this name compiles or drives compilers."""
    return bool(_BUILD_TOOL.fullmatch(name))


def inspect(host: Host, pid: int, name: str, command: str, before: frozenset[Role]) -> frozenset[Role]:
    """Return the roles that the process's files and libraries show; of other users' only root sees them."""
    roles: set[Role] = set()
    if "build" in before or build_tool(name) or _BUILD_SCRIPT.fullmatch(command):
        roles.add("build")
    if holds_gpu(host, pid):
        roles.add("gpu")
    # A library that was loaded stays; the map of a big process takes a millisecond, so once is enough.
    if "training" in before or (("gpu" in roles or _is_python(host, pid, name)) and _maps(host, pid, FRAMEWORK)):
        roles.add("training")
    return frozenset(roles)


def holds_gpu(host: Host, pid: int) -> bool:
    """Tell whether the process has a GPU's device file open.

    Of other users' open files only who may read all files sees the names (CAP_DAC_READ_SEARCH), which is
    too much to ask for; without it the process's map tells (CAP_SYS_PTRACE) who has loaded CUDA's driver.
    """
    folder = f"/proc/{pid}/fd"
    try:
        return any(GPU_DEVICE.fullmatch(host.link(f"{folder}/{name}") or "") for name in host.names(folder, MOST_FILES))
    except NoData:
        return False
    except SourceError:
        return _maps(host, pid, DRIVER)


def short_command(host: Host, pid: int) -> str:
    """Return what ``title`` says of a process; nothing where it has ended or hides it."""
    return title(host.read_optional(f"/proc/{pid}/cmdline").rstrip("\0").split("\0"))


def title(words: Sequence[str]) -> str:
    """Return program and script or source file; all other arguments are omitted, for they may hold secrets.

    A program that overwrote its arguments with a title (setproctitle) has one word: of it, the part before the
    first blank counts, without the colon of ``postgres: writer``.
    """
    program = PurePosixPath(words[0].lstrip().partition(" ")[0]).name.rstrip(":")
    return named(f"{program} {_subject(program, words[1:])}".strip())[:_COMMAND_LENGTH]


def _subject(program: str, arguments: Sequence[str]) -> str:
    if not _PYTHON.fullmatch(program):
        sources = [a for a in arguments if _SOURCE_FILE.fullmatch(a) and not a.startswith("-")]
        return PurePosixPath(sources[-1]).name if sources and build_tool(program[:15]) else ""
    rest = iter(arguments)
    for argument in rest:
        if argument == "-m":
            return f"-m {next(rest, '')}"
        if argument == "-c":
            return "-c"
        if argument in ("-X", "-W"):
            next(rest, None)
        elif not argument.startswith("-"):
            return PurePosixPath(argument).name
    return ""


def _is_python(host: Host, pid: int, name: str) -> bool:
    # Frameworks rename their processes (pt_main_thread, ray::...); the executable stays Python's.
    program = PurePosixPath(host.link(f"/proc/{pid}/exe") or name).name
    return bool(_PYTHON.fullmatch(program))


def _maps(host: Host, pid: int, pattern: re.Pattern[str]) -> bool:
    return bool(pattern.search(host.read_optional(f"/proc/{pid}/maps")))
