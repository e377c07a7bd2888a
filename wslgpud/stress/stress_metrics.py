"""The last run of each GPU as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import get_args

from wslgpud.metrics import MetricSpec, counter, gauge, info
from wslgpud.model import Reading, StressResult, StressVerdict
from wslgpud.stress.result import KINDS

_GPU = ("gpu", "uuid")


def _gauge(name: str, text: str, *labels: str) -> MetricSpec:
    # Not stored as samples: each run is a row in the database.
    return gauge(name, text, *_GPU, *labels, stored=False)


LAST_RUN = _gauge("vram_stress_last_run_timestamp_seconds", "When the last stress run began or was skipped.")
LAST_SUCCESS = _gauge(
    "vram_stress_last_success_timestamp_seconds", "When the last run that passed began; skipped runs do not count."
)
VERDICT = _gauge(
    "vram_stress_result", "1 for the verdict of the last run: passed, findings, left, skipped, failed.", "verdict"
)
FINDINGS = _gauge("vram_stress_findings", "Findings of the last complete run, by kind.", "kind")
DURATION = _gauge("vram_stress_duration_seconds", "Duration of the last complete run.")
SIZE = _gauge(
    "vram_stress_bytes",
    "Parts of the card's memory in the last complete run: spec (nominal), total, visible to CUDA, "
    "reserved by the driver, foreign, context, free, allocated, verified, usable (not spilled), spilled, "
    "spill_start (allocated before the first that spilled), leak.",
    "kind",
)
COVERAGE = _gauge("vram_stress_coverage_ratio", "Share of the free memory that was verified.")
USABLE = _gauge("vram_stress_usable_ratio", "Usable share of the card's nominal memory.")
BANDWIDTH = _gauge(
    "vram_stress_bandwidth_bytes_per_second",
    "Bandwidth over chunks of 256 MiB, 1 GiB on cards from 64 GiB: op write, change or read; stat median or min.",
    "op",
    "stat",
)
BANDWIDTH_SHARE = _gauge(
    "vram_stress_bandwidth_ratio",
    "Median bandwidth as a share of what clock and width of the card's memory allow.",
    "op",
)
REGION = _gauge(
    "vram_stress_region_bandwidth_bytes_per_second",
    "Read bandwidth of the slowest chunk in each part of the card, in order of allocation (00 first).",
    "region",
)
_MADE_WITH = ("driver", "torch", "cuda", "mode")
_HELP = "Versions and mode of the last complete run; only runs with the same ones can be compared."
RUN = info("vram_stress_run", _HELP, *_GPU, *_MADE_WITH)
TEMPERATURE = _gauge("vram_stress_temperature_celsius", "Highest temperature of the core during the last complete run.")
SLOWED = _gauge(
    "vram_stress_slowed_ratio",
    "Share of samples of the last complete run in which heat or the power supply throttled the card.",
)
ECC_ERRORS = _gauge("vram_stress_ecc_errors", "Memory errors detected by ECC during the last complete run.", "type")
ERRORS = counter("vram_stress_errors", "Wrong words in all stored runs.", *_GPU, stored=False)
RUNS = counter("vram_stress_runs", "Stored runs, by verdict.", *_GPU, "verdict", stored=False)

METRICS = tuple(spec for spec in [*vars().values()] if isinstance(spec, MetricSpec))
#: figures in bytes: a card's memory, and the outcome for the free part
BYTES = (
    *("spec_bytes", "total_bytes", "visible_bytes", "reserved_bytes", "foreign_bytes", "context_bytes", "free_bytes"),
    *("allocated_bytes", "verified_bytes", "usable_bytes", "spilled_bytes", "spill_start_bytes", "leak_bytes"),
)
#: values of runs that become series, each with its additional labels
FIGURES: Sequence[tuple[MetricSpec, str, tuple[str, ...]]] = (
    (TEMPERATURE, "temperature_max_celsius", ()),
    (SLOWED, "slowed_ratio", ()),
    (ECC_ERRORS, "ecc_corrected", ("corrected",)),
    (ECC_ERRORS, "ecc_uncorrected", ("uncorrected",)),
    (DURATION, "duration_seconds", ()),
    *((SIZE, name, (name.removesuffix("_bytes"),)) for name in BYTES),
    *((BANDWIDTH, f"{op}_{stat}", (op, stat)) for op in KINDS for stat in ("median", "min")),
)
#: the same as ratios
RATIOS = (
    (COVERAGE, "verified_bytes", "free_bytes", ()),
    (USABLE, "usable_bytes", "spec_bytes", ()),
    *((BANDWIDTH_SHARE, f"{op}_median", "peak_bandwidth", (op,)) for op in KINDS),
)
#: segments of the card: enough for a picture, few enough for one scrape
REGIONS = 32
VERDICTS: tuple[StressVerdict, ...] = get_args(StressVerdict)


def readings(results: Iterable[StressResult]) -> Iterator[Reading]:
    """Turn the stored runs, oldest first, into readings."""
    by_gpu: dict[tuple[str, str], list[StressResult]] = {}
    for result in results:
        by_gpu.setdefault((str(result.gpu), result.uuid), []).append(result)
    for gpu, runs in by_gpu.items():
        last = runs[-1]
        yield Reading(LAST_RUN, last.wall, gpu)
        if passed := [run.wall for run in runs if run.verdict == "passed"]:
            yield Reading(LAST_SUCCESS, passed[-1], gpu)
        counts = Counter(run.verdict for run in runs)
        for verdict in VERDICTS:
            yield Reading(VERDICT, int(last.verdict == verdict), (*gpu, verdict))
            yield Reading(RUNS, counts[verdict], (*gpu, verdict))
        yield Reading(ERRORS, sum(run.values.get("errors", 0) for run in runs), gpu)
        if complete := [run for run in runs if run.complete]:
            yield from _figures(complete[-1], gpu)


def _figures(run: StressResult, gpu: tuple[str, str]) -> Iterator[Reading]:
    for kind, count in Counter(finding.kind for finding in run.findings).items():
        yield Reading(FINDINGS, count, (*gpu, kind))
    values = run.values
    for spec, name, labels in FIGURES:
        if name in values:
            yield Reading(spec, values[name], (*gpu, *labels))
    for spec, part, total, labels in RATIOS:
        if part in values and values.get(total):
            yield Reading(spec, values[part] / values[total], (*gpu, *labels))
    yield Reading(RUN, 1, (*gpu, *(run.key.get(name, "") for name in _MADE_WITH)))
    chunks = [row["bytes"] / row["read"] for row in run.detail.get("chunks", ())]
    regions = min(REGIONS, len(chunks))
    for region in range(regions):
        speeds = chunks[region * len(chunks) // regions : (region + 1) * len(chunks) // regions]
        yield Reading(REGION, round(min(speeds)), (*gpu, f"{region:02d}"))
