"""What a change of level says: one pure function, and the sentences of each rule, declared once.

A text has a first line (what, when, who), the evidence, and advice; what is not known is left out of them.
"""

from __future__ import annotations

from typing import NamedTuple

from wslgpud.alerts.incidents import Incident, kind_of
from wslgpud.alerts.outcome import with_victim
from wslgpud.alerts.rules import MEMORY, OOM_KILL
from wslgpud.model import NOTHING_SAID, Forecast, Level, Transition
from wslgpud.risk import wording
from wslgpud.words import HEADLINE_CHARACTERS, Message, filled, say, template


class Text(NamedTuple):
    """What an alert says."""

    headline: Message
    evidence: tuple[Message, ...] = ()
    advice: Message = NOTHING_SAID


class RuleText(NamedTuple):
    """A rule in words: title, first line, evidence, advice, and what is said when it is over."""

    title: str
    headline: str = ""
    evidence: str = ""
    advice: str = ""
    over: str = ""


RULES = {
    MEMORY: RuleText(template("memory running out")),
    "vram_stress": RuleText(
        template("VRAM stress run"),
        template("VRAM stress run of {resource}: {text}"),
        advice=template(
            "'wslgpud stress history' lists all runs, 'wslgpud stress show ID' the figures behind one. Wrong "
            "data: take back any overclocking and run 'wslgpud stress --full' again; if it stays, the card "
            "is faulty."
        ),
        over=template("VRAM stress run of {resource}: {text}"),
    ),
    "oom_kill": RuleText(
        template("out-of-memory kill"),
        template(
            "[{kills} programs killed for lack of memory while wslgpud did not run; last: {victim}"
            "|Killed for lack of memory: {who}, {size_bytes}[, at {died_wall}]"
            "|Killed for lack of memory: probably {likely}, {size_bytes}"
            "|The kernel killed a process for lack of memory]"
        ),
        template(
            "[Each hit the limit of its cgroup: {victims}."
            "|It held {anon_bytes} of its own and {shmem_bytes} of shared memory; {resource} was used up."
            "|The kernel's log cannot be read: {likely} was gone, and its memory back, when the counter rose."
            "|The kernel's counter of OOM kills rose; its log cannot be read, so the victim is unknown.]"
        ),
        template(
            "Run fewer jobs at once (MAX_JOBS, -j, num_workers), lower the batch size or context, or give "
            "the machine more: memory= and swap= under [wsl2] in .wslconfig. 'wslgpud incidents' shows who "
            "grew."
        ),
    ),
    "vram_residency_failed": RuleText(
        template("VRAM cannot be made resident"),
        template("{resource}: Windows could not make VRAM resident (make_resident failed)"),
        template("Kernel: {text}. Under WSL2 this means that VRAM is used up, even if some looks free."),
        template(
            "Save a checkpoint and stop what uses the card; do not simply try again: retries on a full card "
            "have crashed Windows. Then stay below about 80 % of it, close desktop programs that hold VRAM, "
            "and do without expandable_segments and much pinned memory, which WSL limits."
        ),
    ),
    "gpu_error": RuleText(
        template("GPU error"),
        template("{resource}: the driver reports Xid {xid}"),
        template("Kernel: {text}"),
        template(
            "Save your work. Look the number up at https://docs.nvidia.com/deploy/xid-errors/ ; 48, 63, 64, "
            "92, 94 and 95 concern its memory, 79 means that the card has left the bus: power, cable or card."
        ),
    ),
    "gpu_lost": RuleText(
        template("GPU lost"),
        template("{resource} does not answer any more"),
        template("The driver lists the card {uuid} and cannot reach it."),
        template(
            "Programs on it have failed. Restart the machine (under WSL2: wsl --shutdown in Windows, then "
            "start again); if it happens again, check power supply, heat and riser cable."
        ),
        template("{resource} answers again"),
    ),
    "gpu_driver_gone": RuleText(
        template("GPU driver silent"),
        template("The NVIDIA driver has stopped answering"),
        template("{error}"),
        template(
            "After a driver update in Windows: wsl --shutdown, then start again. While Windows resets the "
            "driver (TDR) it comes back by itself. RAM is still watched."
        ),
        template("The NVIDIA driver answers again"),
    ),
    "swap_thrash": RuleText(
        template("thrashing"),
        template(
            "[Programs stall for lack of RAM: {stalled_ratio} of the time lost"
            "|Thrashing: {read_per_second_bytes}/s from swap and {written_per_second_bytes}/s into it]"
        ),
        template("Swap: {read_per_second_bytes}/s in, {written_per_second_bytes}/s out."),
        wording.ADVICE["pressure"],
        template("Programs no longer stall for lack of RAM"),
    ),
    "gpu_throttled": RuleText(
        template("GPU throttled"),
        template("{resource} is throttled[ at {temperature_celsius} °C] ({reasons})"),
        template("Reasons given by the driver: {reasons}. A mere power cap is not among them."),
        template(
            "Check fans, dust and airflow, or lower the power limit (nvidia-smi -pl, in Windows): the last "
            "20 % of power bring a few per cent of speed. hw_power_brake points to the power supply."
        ),
        template("{resource} is no longer throttled"),
    ),
    "vram_spill": RuleText(
        template("VRAM spilling into RAM"),
        template(
            "{resource} is full: [{grown_bytes} moved|its memory moves] to RAM, programs on it become many "
            "times slower"
        ),
        template(
            "Windows counts [{dedicated_bytes} on the card and ]{shared_bytes} of shared memory for it."
        ),
        wording.ADVICE["spilled"],
        template("{resource} no longer spills into Windows' RAM"),
    ),
    "windows_memory_low": RuleText(
        template("Windows short of memory"),
        template(
            "[Windows can commit only {commit_left_bytes} more of {commit_limit_bytes}: its programs will "
            "fail|Windows is short of memory: {available_bytes} left of {total_bytes}"
            "[; WSL holds {vm_bytes}]]"
        ),
        template("WSL's virtual machine holds {vm_bytes}[, of which Linux does not use {unreturned_bytes}]."),
        template(
            "Close programs in Windows. Linux gives memory back only when it is free here: stop what you do "
            "not need, then sync; echo 1 | sudo tee /proc/sys/vm/drop_caches. For good: a smaller memory= "
            "under [wsl2] and autoMemoryReclaim=gradual under [experimental] in .wslconfig, a larger page "
            "file."
        ),
        template("Windows has memory again[: {available_bytes} of {total_bytes} free]"),
    ),
    "state_disk_full": RuleText(
        template("disk nearly full"),
        template("Disk nearly full: {bytes} left on {place}, where wslgpud keeps its history"),
        advice=template(
            "Make room (checkpoints, ~/.cache/huggingface, pip cache purge, docker system prune). When it is "
            "full, training runs lose their checkpoints; wslgpud keeps warning from memory."
        ),
        over=template("{place} has room again: {bytes} left"),
    ),
    "windows_disk_full": RuleText(
        template("Windows' disk nearly full"),
        template("Windows' disk nearly full: {bytes} left on {place}"),
        template("The Linux disk is a file (ext4.vhdx) that grows there, whatever df says inside."),
        template(
            "Make room in Windows now: when it is full, WSL mounts your disk read-only or does not start. "
            "Deleting files in Linux does not give room back until the vhdx is compacted (wsl --manage "
            "DISTRO --set-sparse)."
        ),
        template("{place} has room again: {bytes} left"),
    ),
    "read_only_disk": RuleText(
        template("disk read-only"),
        template("{place} has become read-only"),
        template("Programs cannot save anything there, checkpoints included."),
        template(
            "Under WSL2 this follows an error of the virtual disk or a full Windows disk: save elsewhere, "
            "make room in Windows, wsl --shutdown, and check the disk (dmesg, e2fsck) before you go on."
        ),
        template("{place} can be written to again"),
    ),
    "source_stale": RuleText(
        template("no data from a source"),
        template("No data from {place} any more[: {error}]"),
        template("What this source measures is missing from forecasts, metrics and history."),
        template("See 'wslgpud status' and the daemon's log for the cause."),
        template("{place} delivers data again"),
    ),
    "clock_jump": RuleText(
        template("clock jumped"),
        template("The clock jumped[ by {seconds}: the machine slept, or the time was set]"),
        advice=template("Nothing to do. Gaps in the history around it are no outage."),
    ),
    "store_failing": RuleText(
        template("history cannot be written"),
        template("History cannot be written[: {error}]"),
        template("Warnings go out all the same; what cannot be written is kept in memory for a while."),
        template("Look at the disk that holds the database: full, read-only, or failing."),
        template("History is written again"),
    ),
    "store_damaged": RuleText(
        template("history was damaged"),
        template("The history's database was damaged[: {damage}]"),
        template("The damaged file is set aside, a new one begun, and what can be read is taken over."),
        template(
            "Look at the disk (dmesg, SMART). 'wslgpud db check' says whether the current file is sound."
        ),
    ),
    "unclean_end": RuleText(
        template("unclean end"),
        template(
            "[The machine ended without a shutdown at {last_wall}[; {growing} was growing]"
            "|wslgpud was killed at {killed_wall}; it runs again]"
        ),
        template("[Before it: {trouble}.|Last sample {last_wall}.]"),
        template(
            "'wslgpud incidents' shows the last minutes before it: who grew, how much was left, and the "
            "kernel's log."
        ),
    ),
}


_OVER = template(
    "[Taken as over: {what} ({resource}), not measured for {unseen_seconds}|Over: {what} ({resource})]"
)


def compose(row: Transition) -> Text:
    """Return what a change of level says."""
    kind, known = kind_of(row), RULES.get(row.rule)
    if row.rule == MEMORY and row.forecast is not None:
        text = _memory(row.forecast, row)
        again = say("Again: {headline}", headline=text.headline)
        is_short = len(str(again)) <= HEADLINE_CHARACTERS
        return text._replace(headline=again) if kind == "repeated" and is_short else text
    if known is None:  # of another version
        return Text(row.message)
    facts = {"resource": row.resource, "place": row.resource.partition(":")[2] or row.resource, **row.facts}
    if kind == "closed":
        return Text((filled(known.over, facts) if "unseen_seconds" not in facts else None) or _over(row))
    why = filled(known.evidence, facts)
    limited = row.rule == OOM_KILL and row.resource.startswith("cgroup:")
    advice = Message(wording.ADVICE["cgroup"] if limited else known.advice)
    return Text(wording.fitted(known.headline, facts) or row.message, (why,) * bool(why), advice)


def text_now(incident: Incident, forecast: Forecast | None) -> Text:
    """Return what is to be said of an open incident at this moment.

    Args:
        incident: that is open.
        forecast: of its resource now, where there is one: what was left when it opened is no news.
    """
    if incident.rule == MEMORY and forecast is not None:
        return _memory(with_victim(forecast, incident.kill), incident.last)
    return compose(incident.last)


def _memory(forecast: Forecast, row: Transition) -> Text:
    if row.new == Level.OK and forecast.level > Level.OK:  # the incident is over, whatever is thought now
        return Text(_over(row))
    return Text(wording.headline(forecast), wording.evidence(forecast), wording.advice(forecast, row.facts))


def _over(row: Transition) -> Message:
    """Return that something is over, whatever it was."""
    return filled(_OVER, {"resource": row.resource, **row.facts, "what": Message(RULES[row.rule].title)})
