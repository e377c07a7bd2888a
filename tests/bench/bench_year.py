"""Cost of up to a year of history: size, duration of queries, bytes written.

    python -m tests.bench.bench_year [--series 60] [--keep FOLDER]

``tests.bench.year`` makes the databases (some minutes); bytes written are measured with the real writer over an hour
(``bench_store`` does the same for a day).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from itertools import accumulate, repeat
from operator import truediv
from pathlib import Path

from tests.bench.bench_store import Machine, fill
from tests.bench.year import DAY, make
from wslgpud.config import StoreSettings
from wslgpud.series.curves import curve, joined
from wslgpud.store import Reader, StoreStats, engines
from wslgpud.store.maintenance import TIERS, Info, info
from wslgpud.store.schema import PERIOD_SECONDS
from wslgpud.store.upkeep import Upkeep

#: name, days of minute and hour summaries, days of every sample
AGES = (("a day", 1, 1), ("a week", 7, 7), ("a month", 30, 30), ("a year", 366, 30))
REPEAT = 25
VRAM = "gpu_memory_used_bytes"


def timed(act: Callable[[], object]) -> float:
    """Return CPU time in milliseconds, the minimum of several runs: other programs can only add to it."""
    act()  # warms the page cache, as constant writing does
    taken = []
    for _ in range(REPEAT):
        began = time.thread_time()
        act()
        taken.append((time.thread_time() - began) * 1e3)
    return min(taken)


def queries(file: Path, end: int) -> dict[str, float]:
    """Return the duration of typical queries in milliseconds."""
    with Reader(str(file)) as reader:
        ram, *cards = (*reader.series("memory_available_bytes"), *reader.series(VRAM))
        (noisy,) = reader.series("pressure_waiting_seconds{resource=cpu}")
        year = (end - 366 * DAY, end)

        def cards_summed() -> object:
            return joined([curve(reader, c, (end - 30 * DAY, end), 3600, "bytes", rate=False) for c in cards], "sum")

        return {
            "24 h of one series at 1 s (goal 20)": timed(lambda: reader.columns(ram, end - DAY, end)),
            "24 h of noisy fractions at 1 s (goal 20)": timed(lambda: reader.columns(noisy, end - DAY, end)),
            "  a bare loop that makes as many numbers": timed(lambda: as_many(int(end))),
            "24 h of one series by minute": timed(lambda: reader.read(ram, end - DAY, end, 60)),
            "30 days by quarters of an hour": timed(lambda: reader.read(ram, end - 30 * DAY, end, 900)),
            "a year by hour (goal 20)": timed(lambda: reader.read(ram, *year, 3600)),
            "a year by day": timed(lambda: reader.read(ram, *year, DAY)),
            "VRAM of all cards, 30 days by hour": timed(cards_summed),
            "the last value of everything (goal 5)": timed(reader.latest),
        }


def as_many(end: int) -> tuple[list[float], list[int]]:
    """Create the times and values of a day without reading: a lower bound for any reader in Python."""
    times = range((end - DAY) * 1000, end * 1000, 1000)
    return list(map(truediv, times, repeat(1000))), list(accumulate(repeat(4096, DAY - 1), initial=2**34))


def deleting(file: Path) -> None:
    """Delete everything by the size limit, and print the duration of the longest slice."""
    taken = []
    with engines.writer_engine(file).connect() as connection:
        keep = Upkeep(StoreSettings(max_bytes=1), time.time, StoreStats())
        more = True
        while more:
            began, cpu = time.monotonic(), time.thread_time()
            more = keep(connection, 0)
            taken.append((time.thread_time() - cpu, time.monotonic() - began))
    cpu, wall = (max(column) * 1e3 for column in zip(*taken, strict=True))
    print(
        f"\na day deleted in {len(taken)} slices, the longest {cpu:.1f} ms of processor time,"
        f" {wall:.1f} ms in all (goal 50)"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--series", type=int, default=60)
    options.add_argument("--keep", type=Path, help="folder for the databases; existing ones are reused")
    chosen = options.parse_args()
    end = int(time.time()) // PERIOD_SECONDS * PERIOD_SECONDS
    sizes: list[Info] = []
    times: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.keep or Path(scratch)
        for name, days, raw_days in AGES:
            file = folder / f"{name.replace(' ', '-')}.db"
            began = time.monotonic()
            if not file.exists():
                for _ in make(file, end=end, days=days, raw_days=raw_days, series=chosen.series):
                    pass
                print(f"{file.name} made in {time.monotonic() - began:.0f} s", flush=True)
            with Reader(str(file)) as reader:
                sizes.append(info(reader))
            newest = sizes[-1].newest_wall
            assert newest is not None
            times.append(queries(file, int(newest)))
        print(f"\n{chosen.series} series at 1 s\n{'':42}" + "".join(f"{name:>14}" for name, _, _ in AGES))
        row("size of the file, bytes", [f"{i.file_bytes:,}" for i in sizes])
        for tier in sizes[0].tiers:
            row(f"  {TIERS[tier][0]}", [f"{i.tiers[tier]:,}" for i in sizes])
        row("samples kept", [f"{i.samples:,}" for i in sizes])
        row("  bytes each, without summaries", [f"{i.bytes_a_sample:.3f}" for i in sizes])
        day = chosen.series * DAY
        row(
            "bytes a sample taken, summaries included",
            [f"{i.file_bytes / (day * days):.3f}" for i, (_, days, _) in zip(sizes, AGES, strict=True)],
        )
        for query in times[0]:
            row(f"{query}, ms", [f"{t[query]:.2f}" for t in times])
        doomed = Path(shutil.copy(folder / "a-day.db", Path(scratch) / "doomed.db"))
        deleting(doomed)
        print("\nthe real writer over an hour:")
        fill(Path(scratch) / "hour.db", Machine(chosen.series), 1)


def row(name: str, cells: list[str]) -> None:
    print(f"{name:42}" + "".join(f"{cell:>14}" for cell in cells))


if __name__ == "__main__":
    main()
