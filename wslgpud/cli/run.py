"""``wslgpud run``: the daemon in the foreground."""

from __future__ import annotations

from wslgpud.app import process
from wslgpud.app.become import become
from wslgpud.cli import common


def run(config: common.Config = None, state: common.State = None, host_root: common.HostRoot = None) -> None:
    """Run the daemon: sample this machine, answer Prometheus, warn before memory runs out.

    Examples:
        wslgpud run  # in the foreground, with its data in your own folder
        wslgpud run --config test.toml --state /tmp/wslgpud  # next to the service, for testing
    """
    become(process.order(config=config, state=state, host_root=host_root))
