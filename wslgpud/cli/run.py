"""``wslgpud run``: the daemon in the foreground."""

from __future__ import annotations

from wslgpud import daemon
from wslgpud.cli.common import ConfigOption, HostOption, StateOption


def run(
    config: ConfigOption = None,
    state: StateOption = None,
    host_root: HostOption = None,
) -> None:
    """Run the daemon: sample this machine, answer Prometheus, warn before memory runs out.

    Examples:
        wslgpud run  # in the foreground, with its data in your own folder
        wslgpud run --config test.toml --state /tmp/wslgpud  # beside the service, for a try
    """
    daemon.become(config, state, host_root)
