"""``wslgpud run``: the daemon in the foreground."""

from __future__ import annotations

import os
import signal
from types import FrameType

from wslgpud import logs
from wslgpud.cli.common import ConfigOption, Fault, HostOption, StateOption, host_at, loaded, state_folder


def run(
    config: ConfigOption = None,
    state: StateOption = None,
    host_root: HostOption = None,
) -> None:
    """Sample this machine, answer Prometheus, warn when memory runs out; until Ctrl-C or SIGTERM."""
    # Late: only this command needs the database, the server and the scheduler in memory.
    from wslgpud.app import Daemon, StartError  # noqa: PLC0415

    found = loaded(config)
    logs.set_up(found.config.log.level)
    folder = state_folder(state)
    daemon = Daemon(found.config, host_at(host_root), folder, os.environ)

    def end(_signal: int, _frame: FrameType | None) -> None:
        daemon.stop()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    try:
        with daemon:
            print(f"metrics  {daemon.url}/metrics")
            print(f"page     {daemon.url}/")
            print(f"data     {daemon.database}", flush=True)
            daemon.run()
    except StartError as error:
        raise Fault(str(error)) from error
