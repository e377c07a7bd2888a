"""Real daemons that watch recorded machines, and a Prometheus that scrapes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from tests.hosts.machines import HERE
from tests.stress.support import MIB, night
from tests.support.daemons import daemon, eventually
from tests.support.servers import Prometheus, prometheus
from wslgpud.config import StoreSettings
from wslgpud.store import Store

CARDS = {
    "wsl2-vram-full": "GPU-00000000-0000-0000-0000-000000000001",
    "two-gpus": "GPU-00000000-0000-0000-0000-000000000001",
    "h200-training": "GPU-00000000-0000-0000-0000-000000000002",
}
#: all that a daemon says of its database is there after the first commit
OFTEN = {"WSLGPUD_STORE__COMMIT_SECONDS": "1"}


def chunks(slow: range = range(0)) -> list[dict[str, float | str]]:
    """Return the output of a run over 56 chunks, some of them slow."""
    found: list[dict[str, float | str]] = []
    for number in range(56):
        seconds = 256 * MIB / (76e9 if number in slow else 760e9 - 1e9 * (number % 7))
        speeds = dict.fromkeys(("write", "change", "read"), seconds)
        found.append({"index": number, "bytes": 256 * MIB, "class": "device", **speeds})
    return found


def nights(folder: Path, uuid: str) -> None:
    """Put stress runs into the database of a daemon that has not been started."""
    folder.mkdir(parents=True)
    settings = StoreSettings()
    with Store(str(folder / "wslgpud.db"), settings, boot_id="earlier") as store:
        for number in range(3):
            sizes = {"spec": 16384, "total": 16303, "reserved": 326, "foreign": 900, "context": 400, "spilled": 0}
            values = {f"{kind}_bytes": size * MIB for kind, size in sizes.items()}
            values |= {"peak_bandwidth": 896e9, "temperature_max_celsius": 63, "slowed_ratio": 0}
            run = night(number, uuid=uuid, write_min=700e9, read_min=690e9, **values)
            run = replace(run, detail={"chunks": chunks(range(20, 22))})
            if number == 2:
                run = replace(run, verdict="findings", findings=night(9, findings=(("spill", "x"),)).findings)
            store.record_stress(run)


@contextmanager
def watched(folder: Path, hosts: tuple[str, ...]) -> Iterator[tuple[Prometheus, dict[str, str]]]:
    """Yield a Prometheus that has scraped each machine often enough for rates, and their instances."""
    with ExitStack() as stack:
        instances = {}
        for host in hosts:
            home = folder / host
            if host in CARDS:
                nights(home / "state", CARDS[host])
            running = stack.enter_context(daemon(home, "--host-root", str(HERE / host), settings=OFTEN))
            instances[host] = running.url.removeprefix("http://")
        config = f"""
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: wslgpud
    static_configs: [{{targets: {list(instances.values())}}}]
"""
        server = stack.enter_context(prometheus(folder, config))
        # the count of requests is the last to have a rate: a scrape is counted once it has been answered
        often = "rate(wslgpud_http_requests_total{path='/metrics'}[1m])"
        ready = f"count({often} and on (instance) wslgpud_store_commit_age_seconds) == {len(hosts)}"
        eventually(lambda: server.query(ready), "a rate of requests and a commit of each machine")
        eventually(lambda: server.query("wslgpud_windows_memory_total_bytes"), "what Windows says")
        yield server, instances
