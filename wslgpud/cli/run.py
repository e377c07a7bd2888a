"""``wslgpud run``: the daemon in the foreground."""

from __future__ import annotations

from wslgpud import daemon
from wslgpud.cli.common import ConfigOption, HostOption, StateOption


def run(
    config: ConfigOption = None,
    state: StateOption = None,
    host_root: HostOption = None,
) -> None:
    """Sample this machine, answer Prometheus, warn when memory runs out; until Ctrl-C or SIGTERM.

    Examples:
        wslgpud run  # in the foreground, with its data in your own folder
        wslgpud run --config test.toml --state /tmp/wslgpud  # beside the service, for a try
    """
    daemon.become(config, state, host_root)
