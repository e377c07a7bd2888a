"""``wslgpud status``: how things stand, for a terminal or as JSON."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from wslgpud import config as configuration
from wslgpud.cli.common import (
    ConfigOption,
    HostOption,
    JsonOption,
    StateOption,
    ask_daemon,
    host_at,
    loaded,
    state_folder,
)


def status(
    config: ConfigOption = None,
    as_json: JsonOption = False,
    state: StateOption = None,
    host_root: HostOption = None,
) -> None:
    """Show the state of this machine, from the running daemon, else sampled on the spot.

    Examples:
        wslgpud status
        wslgpud status --json  # for programs
    """
    settings = loaded(config).config
    # One's own daemon, else the service's.
    folders = [state] if state else [state_folder(None), configuration.SYSTEM_STATE]
    asked = () if host_root else (ask_daemon(folder) for folder in folders)
    document = next(filter(None, asked), None)
    if document is None:
        seen_by = "recording" if host_root else "own look"
        document = {"seen_by": seen_by, **_own_look(settings, host_root)}
    if as_json:
        print(json.dumps(document, indent=2))
        return
    if "at" not in document:
        print(f"the daemon at {document['url']} has just started and waits for its first sample")
        return
    from wslgpud.cli.screen import print_status  # noqa: PLC0415 - rich only when somebody looks

    print_status(document)


def _own_look(settings: configuration.Config, host_root: Path | None) -> dict[str, Any]:
    from wslgpud import status as summary  # noqa: PLC0415
    from wslgpud.monitor import Monitor  # noqa: PLC0415

    monitor = Monitor(settings, host_at(host_root))
    try:
        state, _ = monitor.tick()
        if host_root is None:  # rates need two looks
            time.sleep(1.0)
            state, _ = monitor.tick()
    finally:
        monitor.close()
    return summary.status(
        state.snapshot, state.observation, state.forecasts, running=state.running, locks=state.locks
    )
