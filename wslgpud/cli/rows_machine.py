"""The rows about the machine and its programs: cards, Windows, processor, disks, processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from wslgpud.cli.live.looks import Look
from wslgpud.cli.live.trail import Key, vram
from wslgpud.cli.rows import BARS, SORTS, View, ink, share, table_of, words
from wslgpud.units import size
from wslgpud.words import current, t, template

#: a process below this, with no role and no growth, is not worth a line
SMALL_BYTES = 32 << 20
#: growth below this, a MiB a minute, is noise
_NOISE_BYTES_PER_SECOND = (1 << 20) / 60
#: what holds the clocks down for a reason worth a word
_BRAKES = {
    "sw_power_cap": template("power cap"), "hw_slowdown": template("slowed by hardware"),
    "sw_thermal_slowdown": template("too hot"), "hw_thermal_slowdown": template("far too hot"),
    "hw_power_brake_slowdown": template("power brake"),
}  # fmt: skip
_ROLES = {"gpu": template("GPU"), "training": template("training"), "build": template("build")}


def gpus(view: View) -> Table:
    """Show what each card does."""
    table = table_of("<", ">", "<", "~")
    for card in view.document["gpus"]:
        gpu = str(card["index"])
        busy = (
            t("busy {busy_ratio}", busy_ratio=card["utilization_ratio"])
            if "utilization_ratio" in card
            else t("busy n/a")
        )
        facts = words("  ".join(_card_facts(view.look, card, gpu)))
        active = (labels["reason"] for labels, on in view.look.series("gpu_throttle_reason", gpu=gpu) if on)
        facts.append(
            "  " + current().listed(t(_BRAKES[reason]) for reason in active if reason in _BRAKES), "yellow"
        )
        name = card["name"].removeprefix("NVIDIA ").removeprefix("GeForce ")
        curve = view.curve("busy", gpu, min(24, view.width // 10), "green")
        table.add_row(words((f"GPU {gpu} ", "bold"), name), busy, curve, facts)
    return table


def _card_facts(look: Look, card: Mapping[str, Any], gpu: str) -> Iterator[str]:
    limit = look.value("gpu_power_limit_watts", gpu=gpu)
    if (watts := card.get("power_watts")) is not None:
        yield f"{watts:.0f}/{limit:.0f} W" if limit else f"{watts:.0f} W"
    if (celsius := card.get("temperature_celsius")) is not None:
        yield f"{celsius:.0f} °C"
    if (fan := look.value("gpu_fan_speed_ratio", gpu=gpu)) is not None:
        yield t("fan {speed_ratio}", speed_ratio=fan)
    if (clock := look.value("gpu_clock_hertz", gpu=gpu, clock="sm")) is not None:
        yield f"{clock / 1e9:.2f} GHz"
    if (state := look.value("gpu_performance_state", gpu=gpu)) is not None:
        yield f"P{state:.0f}"


def machine(view: View) -> Iterator[RenderableType]:
    """Say how the rest of the machine is, and Windows below it."""
    yield from (line for line in (_processor(view), _flows(view)) if line)
    if facts := view.document.get("windows"):
        table = table_of("<", "~")
        table.add_row(Text(t("Windows"), "bold"), words(" · ".join(_windows(facts))))
        yield table


def _processor(view: View) -> Text:
    look, trail = view.look, view.trail
    busy, cpus = trail.last(Key("cpu")), round(look.value("cpus") or 0)
    told = t("{number} cores", number=cpus) if cpus else share(busy)
    if not cpus and busy is None:
        return Text("")
    if cpus and busy is not None:
        told = t("{busy_ratio} of {number} cores", busy_ratio=busy, number=cpus)
    line = words((t("CPU"), "bold"), f" {told} ", view.curve("cpu", "", 20, "blue"))
    if (load := look.value("load1")) is not None:
        line.append(" " + t("load {load}", load=f"{load:.1f}"))
    waits = {t("memory"): "memory", t("CPU"): "cpu", t("I/O"): "io"}
    known = {name: trail.last(Key("waiting", what)) for name, what in waits.items()}
    if waits_for := [f"{name} {share(part)}" for name, part in known.items() if part and part >= 0.01]:
        line.append("  " + t("waits for") + " ", "bold").append(current().listed(waits_for))
    return line


def _flows(view: View) -> Text:
    rates = {what: view.trail.last(Key(what)) for what in ("disk read", "disk write", "received", "sent")}
    read, written, received, sent = (
        t("n/a") if rate is None else t("{amount}/s", amount=size(rate)) for rate in rates.values()
    )
    told = []
    if set(rates.values()) != {None}:
        told.append(t("disk read {read}, written {written}", read=read, written=written))
        told.append(t("network in {received}, out {sent}", received=received, sent=sent))
    room = sorted((labels["mountpoint"], left) for labels, left in view.look.series("filesystem_avail_bytes"))
    told += [t("{place} {left_bytes} free", place=place, left_bytes=left) for place, left in room]
    return words(" · ".join(told))


def _windows(facts: Mapping[str, Any]) -> Iterator[str]:
    """Say what Windows has left, what WSL holds of it, and what of each card lies in RAM."""
    if "memory_available_bytes" in facts and "memory_total_bytes" in facts:
        room = (facts["memory_available_bytes"], facts["memory_total_bytes"])
        yield t("{room_bytes} RAM left", room_bytes=room)
    if "committed_bytes" in facts and "commit_limit_bytes" in facts:
        promised = (facts["committed_bytes"], facts["commit_limit_bytes"])
        yield t("{promised_bytes} committed", promised_bytes=promised)
    if "vm_bytes" in facts:
        yield t("WSL holds {held_bytes}", held_bytes=facts["vm_bytes"])
    if (free := facts.get("vm_unreturned_bytes")) is not None:
        yield t("{free_bytes} of it free in here", free_bytes=free)
    for gpu in facts.get("gpus", ()):
        if "shared_bytes" in gpu and "NVIDIA" in gpu["adapter"]:  # an integrated GPU lives in shared memory
            yield t("{adapter}: {shared_bytes} in shared memory", adapter=gpu["adapter"],
                    shared_bytes=gpu["shared_bytes"])  # fmt: skip


def processes(view: View) -> tuple[list[dict[str, Any]], str]:
    """Return the programs that are wanted in their order, and what that order is."""
    held = vram(view.document)
    wanted, growth = view.shown.filter.lower(), view.trail.growth
    rows = [
        {
            "pid": p["pid"], "ram": p["rss_bytes"], "swap": p["swap_bytes"], "vram": held.get(p["pid"]),
            "holds": p["pid"] in held or "gpu" in p["roles"],
            "does": current().listed(t(_ROLES[role]) for role in p["roles"]),
            "growth": growth(Key("rss", str(p["pid"]))), "vram growth": growth(Key("vram", str(p["pid"]))),
            "program": p["command"] or p["name"],
        }
        for p in view.document["processes"]
    ]  # fmt: skip
    sort = view.shown.sort or (template("RAM") if view.growing is None else template("growth"))
    found = [r for r in rows if wanted in f"{r['pid']} {r['does']} {r['program']}".lower()]
    # Whom the verdict names comes first, unless somebody has chosen another order.
    first = None if view.shown.sort else view.culprit
    found.sort(key=lambda r: (r["pid"] == first, SORTS[sort](r), SORTS["RAM"](r)), reverse=True)
    order = t("by {order}", order=t(sort))
    return found, order + (t(', with "{word}"', word=view.shown.filter) if wanted else "")


def worth_a_line(row: Mapping[str, Any]) -> bool:
    """Tell whether a program does something, grows, or is large."""
    return bool(row["does"]) or row["ram"] + row["swap"] >= SMALL_BYTES or SORTS["growth"](row) > 1 << 20


def process_table(view: View, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Show programs; the one that the verdict names is marked."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bright_black")
    grows = any((row["vram growth"] or 0) > _NOISE_BYTES_PER_SECOND for row in rows)
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        t("pid"): lambda row: str(row["pid"]),
        t("RAM"): lambda row: size(row["ram"]),
        t("grows"): lambda row: _growth(row["growth"]),
        t("swapped"): lambda row: size(row["swap"]) if row["swap"] else "",
        t("VRAM"): lambda row: (
            size(row["vram"]) if row["vram"] is not None else t("n/a") if row["holds"] else ""
        ),
        t("VRAM grows"): lambda row: _growth(row["vram growth"]),
    }
    left_out = [t("VRAM grows")] * (not grows) + [t("swapped")] * (view.width < BARS)
    columns = {name: write for name, write in columns.items() if name not in left_out}
    table.add_column("")
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    if view.width >= BARS:
        table.add_column(t("does"), no_wrap=True, max_width=18, overflow="ellipsis")
    table.add_column(t("program"))  # what does not fit is cut from here, and nothing else
    for row in rows:
        named, program = row["pid"] == view.culprit, Text(row["program"], no_wrap=True, overflow="ellipsis")
        table.add_row(
            "▶" if named else " ", *(Text(write(row)) for write in columns.values()),
            *[Text(row["does"])] * (view.width >= BARS), program,
            style=f"bold {ink(view.document['verdict']['level'])}" if named else "",
        )  # fmt: skip
    return table


def _growth(rate: float | None) -> str:
    return current().rate(rate) if rate is not None and rate > _NOISE_BYTES_PER_SECOND else ""
