"""A recording of this machine's NVML, for ``wslgpud capture``."""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from wslgpud.probes import dxg
from wslgpud.probes.nvml_calls import CALLS, GPU_IDENTITY, SYSTEM_IDENTITY, Failed, NvmlLibrary, written
from wslgpud.probes.nvml_probe import Session


def main() -> int:
    """Print a recording of this machine; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m wslgpud.probes.nvml_recording", description=__doc__)
    parser.add_argument("--library", default="", help="NVML's library (the driver's)")
    try:
        session = Session(NvmlLibrary(parser.parse_args().library), time.monotonic())
    except Failed as failed:
        print(f"no NVML here: {failed.text or f'{failed.call} returned {failed.error}'}", file=sys.stderr)
        return 1
    print(json.dumps(capture(session), indent=1))
    return 0


def capture(session: Session) -> dict[str, Any]:
    """Return a recording of this machine for ``--recording``, without identifying data."""
    system: dict[str, Any] = {function: _ask(session, function) for _, function, _ in SYSTEM_IDENTITY}
    gpus: list[dict[str, Any]] = []
    forms = [(function, ()) for _, function, _ in GPU_IDENTITY] + [form for call in CALLS for form in call.forms]
    for gpu in session.gpus:
        if gpu.lost:
            gpus.append({"*": {"error": gpu.lost}})
            continue
        answers = {written(f, *a): _ask(session, f, gpu.handle, *a) for f, a in forms}
        gpus.append(answers)
        listed = (process for answer in answers.values() if isinstance(answer, list) for process in answer)
        pids = [process["pid"] for process in listed if isinstance(process, dict) and "pid" in process]
        # Natively names come from /proc/PID/cmdline, whose readers that process can make wait forever.
        for pid in pids if Path("/dev/dxg").exists() else ():
            system[f"nvmlSystemGetProcessName({pid})"] = _ask(session, "nvmlSystemGetProcessName", pid)
    if not Path(dxg.DEVICE).exists():
        return {"system": system, "gpus": gpus}
    # No name is in it, and LUIDs are new at every start of Windows.
    return {"system": system, "gpus": gpus, "dxg": dxg.PatientDxgReader(dxg.REPORT_SECONDS).ask()}


def _ask(session: Session, function: str, *arguments: Any) -> Any:
    try:
        return _plain(session.ask(function, *arguments))
    except Failed as failed:
        return {"error": failed.error}


def _plain(answer: Any) -> Any:
    """Return an answer as JSON, with UUIDs replaced and paths cut to their last part."""
    if isinstance(answer, bytes):
        answer = answer.decode("utf-8", "replace")
    if isinstance(answer, str):
        return _masked(answer)
    if isinstance(answer, (list, tuple)):
        return [_plain(item) for item in answer]
    if isinstance(answer, ctypes.Structure):
        return {name: _plain(getattr(answer, name)) for name, *_ in type(answer)._fields_}
    if hasattr(answer, "__dict__"):
        return {name: _plain(value) for name, value in vars(answer).items()}
    return answer


def _masked(text: str) -> str:
    """Replace a UUID by one that distinguishes cards without identifying them; drop folders, which name users."""
    if re.fullmatch(r"(GPU|MIG)-[0-9a-f-]{36}", text):
        number = hashlib.sha256(b"wslgpud" + text.encode()).hexdigest()
        return f"{text[:4]}00000000-0000-0000-0000-{number[:12]}"
    return text.rpartition("/")[2]


if __name__ == "__main__":
    sys.exit(main())
