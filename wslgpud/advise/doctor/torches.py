"""Queries users' Pythons about their torch, each in a child with a time limit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wslgpud.security import safe_files
from wslgpud.security.run_as import Command, environment, run
from wslgpud.security.shapes import Shape, flag, maybe, pair, record, rows, text, uint
from wslgpud.stress.find_python import NoTorch, find_python
from wslgpud.words import MessageLike, cause, say
from wslgpud.words.units import one_line

PROBE = Path(__file__).with_name("torch_probe.py")
#: a cold import of torch from a slow disk takes this long, a hung driver forever
ASK_SECONDS = 60.0
_ANSWER: dict[str, Shape] = {
    **dict.fromkeys(("version", "cuda", "kernel"), text),
    **dict.fromkeys(("architectures", "capabilities"), rows(text)),
    "ran": flag,
    "tf32": maybe(flag),
    "cudnn": maybe(uint),
    "pinned": maybe(pair(uint, flag)),
}
_FACTS = record(_ANSWER)
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)[a-z]?")


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """One Python's answer about its torch; ``failure`` is why there is none, ``kernel`` why no kernel ran.

    ``python`` is empty where none was found.

    ``pinned`` is the host memory that could be pinned, in bytes, and whether the limit was the probe's own.
    """

    python: str
    version: str = ""
    cuda: str = ""
    architectures: Sequence[str] = ()
    #: the compute capability of each CUDA device, like 12.0
    capabilities: Sequence[str] = ()
    kernel: str = ""
    ran: bool = False
    tf32: bool | None = None
    cudnn: int | None = None
    pinned: Sequence[int] | None = None
    failure: MessageLike = ""


def ask(named: str, environ: Mapping[str, str], state_folder: Path, seconds: float = ASK_SECONDS) -> TorchFacts:
    """Query a Python, "" being the one that trains here; one that hangs is killed and reported."""
    try:
        found = find_python(named, environ, state_folder)
    except NoTorch as error:
        return TorchFacts(named, failure=error.message)
    python = str(found.path)
    try:
        kept = {k: v for k, v in environ.items() if not k.startswith("PYTHON")}
        variables = {**environment(found.account, kept), "PYTHONDONTWRITEBYTECODE": "1"}
        code, output, complaints = run(Command([python], variables, found.account), seconds, script=PROBE)
    except TimeoutError:
        return TorchFacts(python, failure=say("did not answer within {limit_seconds}", limit_seconds=seconds))
    except OSError as error:
        return TorchFacts(python, failure=say("cannot be started: {why}", why=cause(error)))
    return _facts(python, output, complaints, code)


def _facts(python: str, output: str, complaints: str, code: int) -> TorchFacts:
    with suppress(IndexError, ValueError):
        if _FACTS(said := safe_files.parsed(output.strip().splitlines()[-1])):
            return TorchFacts(python, **{name: said[name] for name in _ANSWER})
    last = complaints.strip().splitlines()[-1:]
    why = one_line(last[0]) if last else say("ended with status {status}", status=code)
    return TorchFacts(python, failure=why)


def runs_on(architectures: Iterable[str], capability: tuple[int, int]) -> bool:
    """Return whether a build for these architectures (sm_90, compute_90) has code for a card.

    Compiled code (sm_XY) runs on cards of the same major version and no lower minor one; intermediate code (compute_XY)
    on every later one: https://docs.nvidia.com/cuda/blackwell-compatibility-guide/.
    """
    for match in filter(None, map(_ARCHITECTURE.fullmatch, architectures)):
        built = int(match[2]), int(match[3])
        if built <= capability and (match[1] == "compute" or built[0] == capability[0]):
            return True
    return False


def version(said: str) -> tuple[int, ...]:
    """Return the numbers of a version: ``12.8`` and ``2.7.1+cu128`` compare as people expect."""
    return tuple(int(n) for n in re.findall(r"\d+", said.partition("+")[0])[:3])
