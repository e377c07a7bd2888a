"""``wslgpud record`` and ``wslgpud capture``: a live trace to replay, and a masked copy of a machine's files."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import IO, Annotated

from wslgpud.app.process import host_at
from wslgpud.cli import common
from wslgpud.cli.common import Fault, argument, loaded, option, seconds, writing
from wslgpud.host import Host
from wslgpud.risk import trace
from wslgpud.sampling import capture as captures
from wslgpud.sampling.pipeline import SamplingPipeline
from wslgpud.security import safe_files
from wslgpud.words import cause, current, says, t


def record(
    file: Annotated[Path, argument("FILE", "recording to write; compressed if it ends in .gz")],
    lasting: Annotated[str, option("--for", "TIME", "stop after this time: 90s, 30min, 2h; else at Ctrl-C")] = "",
    config: common.Config = None,
    host_root: common.HostRoot = None,
) -> None:
    """Record the risk engine's input, sample by sample, until Ctrl-C.

    Examples:
        wslgpud record leak.jsonl.gz --for 10min
        wslgpud replay leak.jsonl.gz  # the engine's verdict on it
    """
    span = seconds(lasting) if lasting else float("inf")
    settings, host = loaded(config).config, host_at(host_root)
    with writing(file):
        opener = gzip.open if file.suffix == ".gz" else open
        descriptor = safe_files.open_plain(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        stream: IO[str] = opener(f"/proc/self/fd/{descriptor}", "wt", encoding="utf-8")
        os.close(descriptor)
    monitor = SamplingPipeline(settings, host)
    count, end, wait = 0, time.monotonic() + span, threading.Event()
    for number in (signal.SIGTERM, signal.SIGHUP):  # a compressed file that is not closed cannot be replayed
        signal.signal(number, signal.default_int_handler)
    try:
        with stream, contextlib.suppress(KeyboardInterrupt):
            first: float | None = None
            while (began := time.monotonic()) < end:
                state, _ = monitor.tick()
                seen = state.observation
                if first is None:
                    first = seen.t
                    about = trace.header(settings.sampling.interval_seconds, {"wsl": seen.wsl})
                    stream.write(json.dumps(about) + "\n")
                row = trace.row_from_observation(replace(seen, t=seen.t - first))
                stream.write(json.dumps(row, separators=(",", ":")) + "\n")
                stream.flush()  # the last lines before a crash matter most
                count += 1
                wait.wait(max(0.0, min(began + monitor.delay_seconds, end) - time.monotonic()))
    except OSError as error:
        raise Fault(
            "cannot write {file}: {reason}; {count} samples came before that",
            file=str(file),
            reason=cause(error),
            count=count,
        ) from error
    finally:
        monitor.close()
    print(current().text(says("{count} sample in {file}", "{count} samples in {file}", count=count, file=str(file))))


def capture(folder: Annotated[Path, argument("FOLDER", "new folder to write")], config: common.Config = None) -> None:
    """Copy the files that wslgpud reads here, with names, serials and addresses masked, for a bug report.

    Examples:
        wslgpud capture my-machine  # then look through the files
    """
    if folder.exists():
        raise Fault("{folder} exists already; name a new folder", folder=str(folder))
    with writing(folder):
        count = len(captures.capture(Host(), folder, loaded(config).config))
    message = t("wrote {count} files in {folder}: review them before you share them", count=count, folder=str(folder))
    print(message)
