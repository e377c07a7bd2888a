"""Turns the worker's lines into classes of chunks and errors, sizes, and the verdict. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from wslgpud.model import GpuSample, Number, StressFinding, StressResult, StressVerdict
from wslgpud.stress.telemetry import SHARED_BYTES, Course
from wslgpud.words import TEMPLATES, Message, MessageLike, say, says
from wslgpud.words.units import one_line

ChunkClass = Literal["dedicated", "degraded", "spilled", "contended"]
ErrorClass = Literal["read", "cell", "stuck", "address", "inversion", "constant", "unexamined"]
KINDS = ("write", "change", "read")

#: A chunk this slow relative to the others lies behind PCIe. Memory is at least ten times as fast as PCIe on any card,
#: so 0.5 is crossed once a few percent of a chunk have been moved out.
SPILLED_RATIO = 0.5
DEGRADED_RATIO = 0.8
#: memory that the driver may keep after a run before it counts as a leak
LEAK_BYTES = 256 << 20

#: messages about kinds of errors, and about the worker's reasons to leave (anything else is foreign text)
EXPLAINED: Mapping[ErrorClass, str] = TEMPLATES["memory_error"]
LEFT: Mapping[str, str] = TEMPLATES["left"]
#: nominal sizes of cards, in GiB
SOLD = (1, 2, 3, 4, 5, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 144, 180, 192, 256, 288)


def sold_bytes(total_bytes: int) -> int:
    """Return a card's nominal size: the next one up from the memory that its driver manages.

    The difference goes to ECC and the driver: 23,034 MiB are left of an L4's 24 GB, 16,303 of a 5070 Ti's 16.
    """
    return next((size << 30 for size in SOLD if size << 30 >= total_bytes), total_bytes)


def classify_chunks(rows: Sequence[Mapping[str, float]]) -> list[ChunkClass]:
    """Classify where each chunk lies, from the seconds of its passes in one sweep.

    ``rows`` hold ``bytes`` and the seconds of ``write``, ``change`` and ``read``. The reference is the median of the
    first eight chunks: memory on the card is allocated first. If those are not the fast ones, everything is slow, which
    is another program's load and not a spill.
    """
    if not rows:
        return []
    rates = [[row["bytes"] / row[kind] for kind in KINDS] for row in rows]
    first = rates[: max(1, min(8, len(rates) // 4))]
    usual = [max(1.0, median(of_kind)) for of_kind in zip(*first, strict=True)]  # empty chunks have no rate
    best = [max(of_kind) for of_kind in zip(*rates, strict=True)]
    if all(usually < SPILLED_RATIO * most for usually, most in zip(usual, best, strict=True)):
        return ["contended"] * len(rows)
    classes: list[ChunkClass] = []
    for rate in rates:
        ratios = [one / usually for one, usually in zip(rate, usual, strict=True)]
        spilled, full_speed = max(ratios) < SPILLED_RATIO, min(ratios) >= DEGRADED_RATIO
        classes.append("spilled" if spilled else "dedicated" if full_speed else "degraded")
    return ["contended"] * len(rows) if classes.count("spilled") > 0.75 * len(classes) else classes


def classify_error(bad: Mapping[str, Any], located: Iterable[int] = ()) -> ErrorClass:
    """Return the kind of fault in one report of the worker.

    ``located`` are the chunks found to hold other chunks' words. The interpretation of flip counts follows
    memtest_vulkan (https://github.com/GpuZelenograd/memtest_vulkan#readme).
    """
    samples, flips = bad["samples"], {int(n): count for n, count in bad["flips"].items()}
    words = sum(flips.values())
    half, byte = (sum(count for n, count in flips.items() if n in bits) for bits in (range(20, 45), (7, 8)))
    signs: tuple[tuple[ErrorClass, bool], ...] = (
        ("stuck", any(int(sample["stuck"], 16) for sample in samples)),
        ("address", bad["chunk"] in located or any(sample.get("belongs") for sample in samples)),
        ("unexamined", not bad.get("examined", True)),
        ("read", all(sample["again"] == sample["expected"] for sample in samples)),
        ("constant", len(samples) >= 4 and len({sample["got"] for sample in samples}) == 1),
        ("address", half > 0.8 * words and words >= 4),
        ("inversion", byte > 0.8 * words),
    )
    return next((kind for kind, shown in signs if shown), "cell")


@dataclass
class WorkerOutput:
    lines: list[dict[str, Any]] = field(default_factory=list)
    failure: MessageLike = ""  # empty when it ended by itself, in order
    left: MessageLike = ""  # why it was asked to leave, if it did
    hung_pid: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Frame:
    wall: float
    before: GpuSample  # NVML's view
    key: Mapping[str, str]
    after: GpuSample | None = None
    course: Course | None = None


def digest(outcome: WorkerOutput, frame: Frame) -> StressResult:
    """Turn a run's lines into its result, which ``comparison.py`` compares with other nights."""
    events: dict[str, list[Mapping[str, Any]]] = {}
    for line in outcome.lines:
        events.setdefault(str(line["event"]), []).append(line)
    begin, end = events.get("begin", [{}])[0], events.get("end", [{}])[-1]
    first, speeds = ([row for row in events.get("speed", ()) if row["sweep"] == n] for n in (1, 2))
    classes = classify_chunks(speeds)
    errors, error_rows = _errors(events)
    values = _values(events, frame, begin, classes, speeds)
    values["errors"], values["duration_seconds"] = errors.total(), outcome.seconds
    if speeds:
        # Later allocations may move earlier ones: seen only by going over all of them twice.
        values["moved_chunks"] = sum(a != b for a, b in zip(classify_chunks(first), classes, strict=False))
    taken = {row["index"]: row["free_less"] for row in events.get("chunk", ())}
    findings = tuple(_findings(errors, values, frame.course))
    if outcome.hung_pid is not None:
        hung = say("the worker hangs in the driver and cannot be ended: restart WSL (wsl --shutdown)")
        findings = (*findings, StressFinding("hung", hung))
    verdict, reason = _verdict(end, outcome, findings)
    key = {**frame.key, **{k: str(begin[k]) for k in ("torch", "cuda") if begin.get(k)}}
    detail = {
        "refused": events.get("filled", [{}])[0].get("refused", ""),
        "ladder": events.get("rung", []),
        "patterns": events.get("pattern", []),
        "chunks": [
            {**row, "class": kind, "free_less": taken.get(row["index"])}
            for row, kind in zip(speeds, classes, strict=True)
        ],
        "errors": error_rows,
        "phases": {row["phase"]: row["seconds"] for row in events.get("phase", ())},
        "beyond": events.get("beyond", []),
    }
    card = frame.before
    return StressResult(frame.wall, card.uuid, card.index, card.name, verdict, reason, findings, key, values, detail)


def _errors(events: Mapping[str, list[Mapping[str, Any]]]) -> tuple[Counter[ErrorClass], list[dict[str, Any]]]:
    mixed = events.get("located", ())
    # Both sides of a mix-up: in other patterns, either may look wrong.
    located = {chunk for row in mixed for chunk in (row["chunk"], *(home[0] for home in row["belongs"]))}
    errors: Counter[ErrorClass] = Counter()
    rows, known = [], dict[int, ErrorClass]()
    for bad in events.get("bad", ()):
        kind = classify_error(bad, located)
        if kind == "unexamined":  # its class from when it was examined
            kind = known.get(bad["chunk"], kind)
        known[bad["chunk"]] = kind
        errors[kind] += max(1, bad["words"])
        rows.append({**bad, "class": kind})
    return errors, rows + [{name: row[name] for name in ("event", "chunk", "belongs")} for row in mixed]


def _values(
    events: Mapping[str, list[Mapping[str, Any]]],
    frame: Frame,
    begin: Mapping[str, Any],
    classes: Sequence[ChunkClass],
    speeds: Sequence[Mapping[str, Any]],
) -> dict[str, Number]:
    before = frame.before
    filled = events.get("filled", [{}])[0]
    # Each byte counts once, however often a pattern checks it.
    patterns = events.get("pattern", ())
    covered = [row["verified"] // row["checks"] for row in patterns if row["checks"]]
    on_cuda = begin.get("free") is not None and begin.get("cuda")
    known: dict[str, Number | None] = {
        "spec_bytes": sold_bytes(before.total_bytes) if before.total_bytes else None,
        "total_bytes": before.total_bytes,
        "reserved_bytes": before.reserved_bytes,
        "foreign_bytes": before.used_bytes,
        "visible_bytes": begin.get("total"),
        "context_bytes": before.free_bytes - begin["free"] if on_cuda and before.free_bytes is not None else None,
        "free_bytes": begin.get("free"),
        "allocated_bytes": filled.get("bytes"),
        "verified_bytes": max(covered, default=None),
        "checked_bytes": sum(row["verified"] for row in patterns) if patterns else None,
        "beyond_chunks": sum(row["outcome"] == "ok" for row in events.get("beyond", ())),
        "rungs": sum(row["outcome"] == "ok" for row in events.get("rung", ())),
    }
    if begin.get("bus_bits") and begin.get("memory_kilohertz"):
        # All memory types in use transfer two words per clock, as the driver counts clocks.
        peak = 2 * begin["memory_kilohertz"] * 1000 * begin["bus_bits"] // 8
        known["peak_bandwidth"] = peak if peak < 1 << 50 else None  # implausible: a worker that makes up figures
    if speeds:
        sizes = [row["bytes"] for row in speeds]
        spilled = [size for size, kind in zip(sizes, classes, strict=True) if kind == "spilled"]
        known["spilled_bytes"] = sum(spilled)
        known["usable_bytes"] = sum(sizes) - sum(spilled)
        if spilled:
            known["spill_start_bytes"] = sum(sizes[: classes.index("spilled")])
        known["degraded_chunks"] = classes.count("degraded")
        known["contended"] = int("contended" in classes)
        for kind in KINDS:
            moved = 2 if kind == "change" else 1
            rates = sorted(moved * row["bytes"] / row[kind] for row in speeds)
            known[f"{kind}_min"], known[f"{kind}_median"] = rates[0], median(rates)
    if released := events.get("released"):
        known["leak_bytes"] = max(0, released[0]["still_taken"])
    after = frame.after.used_bytes if frame.after else None
    if after is not None and before.used_bytes is not None:
        known["left_behind_bytes"] = max(0, after - before.used_bytes)
    known |= frame.course.values() if frame.course else {}
    return {name: value for name, value in known.items() if value is not None}


def _findings(
    errors: Counter[ErrorClass], values: Mapping[str, Number], course: Course | None
) -> Iterator[StressFinding]:
    for kind, count in errors.items():
        how = Message(EXPLAINED[kind])
        text = says("{count} wrong word: {how}", "{count} wrong words: {how}", count=count, how=how)
        yield StressFinding("errors", text)
    if spilled := values.get("spilled_bytes", 0):
        text = say(
            "{spilled_bytes} within the limit lie in shared memory, not on the card: programs slow down before the "
            "card is full",
            spilled_bytes=spilled,
        )
        yield StressFinding("spill", text)
    if course is not None:
        yield from course.findings()
    moved = values.get("shared_grown_bytes", 0)
    if moved > SHARED_BYTES and not spilled and not values.get("beyond_chunks"):
        text = say(
            "Windows moved {moved_bytes} of other programs' VRAM into RAM during the run: raise stress.reserve_bytes",
            moved_bytes=moved,
        )
        yield StressFinding("spill", text)
    leak = max(values.get("leak_bytes", 0), values.get("left_behind_bytes", 0))
    if leak > LEAK_BYTES:
        yield StressFinding("leak", say("{leak_bytes} were not freed after the run", leak_bytes=leak))


def _verdict(
    end: Mapping[str, Any], outcome: WorkerOutput, findings: Sequence[StressFinding]
) -> tuple[StressVerdict, MessageLike]:
    why = outcome.failure or outcome.left or _why(end)
    if any(finding.kind == "errors" for finding in findings):
        # Errors count regardless of how the run ended.
        return "findings", why
    if outcome.failure:
        return "failed", why
    if end.get("outcome") == "left":
        return "left", why
    if end.get("outcome") != "done":
        return "failed", why or say("the worker ended without a result")
    return ("findings", "") if findings else ("passed", "")


def _why(end: Mapping[str, Any]) -> MessageLike:
    """Return why the worker ended; templates are ours, never the worker's."""
    word = str(end.get("why", ""))
    return Message(LEFT[word], end.get("facts", {})) if word in LEFT else one_line(word)
