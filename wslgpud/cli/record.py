"""``wslgpud record``: a live trace for ``wslgpud replay``."""

from __future__ import annotations

import gzip
import json
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import IO, Annotated

import typer

from wslgpud.cli.common import ConfigOption, Fault, HostOption, host_at, loaded
from wslgpud.cli.moments import seconds
from wslgpud.words import failure, t


def record(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="recording to write; compressed if it ends in .gz")
    ],
    lasting: Annotated[
        str, typer.Option("--for", metavar="TIME", help="end after so long: 90s, 30min, 2h; else at Ctrl-C")
    ] = "",
    config: ConfigOption = None,
    host_root: HostOption = None,
) -> None:
    """Record the risk engine's input, sample by sample, until Ctrl-C.

    Examples:
        wslgpud record leak.jsonl.gz --for 10min
        wslgpud replay leak.jsonl.gz  # the engine's verdict on it
    """
    from wslgpud.monitor import Monitor  # noqa: PLC0415 - starts threads and children; only when needed
    from wslgpud.risk import rows, trace  # noqa: PLC0415

    span = seconds(lasting) if lasting else float("inf")
    settings = loaded(config).config
    host = host_at(host_root)
    stream = _created(file)
    monitor = Monitor(settings, host)
    count, end = 0, time.monotonic() + span
    wait = threading.Event()
    for number in (signal.SIGTERM, signal.SIGHUP):  # a compressed file that is not ended cannot be replayed
        signal.signal(number, signal.default_int_handler)
    try:
        with stream:
            first: float | None = None
            while (began := time.monotonic()) < end:
                state, _ = monitor.tick()
                seen = state.observation
                if first is None:
                    first = seen.t
                    about = trace.header(settings.sampling.interval_seconds, {"wsl": seen.wsl})
                    stream.write(json.dumps(about) + "\n")
                row = rows.row_from_observation(replace(seen, t=seen.t - first))
                stream.write(json.dumps(row, separators=(",", ":")) + "\n")
                stream.flush()  # the last lines before a crash are the ones wanted
                count += 1
                wait.wait(max(0.0, min(began + monitor.delay_seconds, end) - time.monotonic()))
    except KeyboardInterrupt:
        pass
    except OSError as error:
        raise Fault(
            "cannot write {file}: {reason}; {count} samples came before that",
            file=str(file), reason=failure(error), count=count,
        ) from error  # fmt: skip
    finally:
        monitor.close()
    print(t("{count} samples in {file}", count=count, file=str(file)))


def _created(file: Path) -> IO[str]:
    try:
        if file.suffix == ".gz":
            return gzip.open(file, "xt", encoding="utf-8")
        return file.open("x", encoding="utf-8")
    except FileExistsError as error:
        raise Fault("{file} exists already; it is left as it is", file=str(file)) from error
    except OSError as error:
        raise Fault("cannot write {file}: {reason}", file=str(file), reason=failure(error)) from error
