"""What a change of level says: one pure function, and the sentences of each rule, declared once.

A text has a first line (what, when, who), the evidence, and advice. Which of a rule's sentences is used
depends on what is known: the first whose blanks can all be filled.
"""

from __future__ import annotations

from typing import NamedTuple

from wslgpud.alerts.incidents import Incident, kind_of
from wslgpud.alerts.outcome import with_victim
from wslgpud.alerts.rules import MEMORY
from wslgpud.model import NOTHING_SAID, Forecast, Level, Transition
from wslgpud.risk import wording
from wslgpud.risk.attribution import briefer
from wslgpud.risk.wording import HEADLINE_CHARACTERS, filled
from wslgpud.units import one_line
from wslgpud.words import ENGLISH, Fact, Message, Said, Tongue, say, template


class Text(NamedTuple):
    """What an alert says."""

    headline: Message
    evidence: tuple[Message, ...] = ()
    advice: Message = NOTHING_SAID


class RuleText(NamedTuple):
    """A rule in words: title, first lines, evidence (from best known to least), advice, and what ends it."""

    title: str
    headlines: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    advice: str = ""
    over: tuple[str, ...] = ()


RULES = {
    "memory_exhaustion": RuleText(template("memory running out")),
    "vram_stress": RuleText(
        template("VRAM stress run"),
        (template("VRAM stress run of {resource}: {text}"),),
        advice=template(
            "'wslgpud stress history' lists all runs, 'wslgpud stress show ID' the figures behind one. Wrong "
            "data: take back any overclocking and run 'wslgpud stress --full' again; if it stays, the card "
            "is faulty."
        ),
        over=(template("VRAM stress run of {resource}: {text}"),),
    ),
    "oom_kill": RuleText(
        template("out-of-memory kill"),
        (
            template("{kills} programs killed for lack of memory while wslgpud did not run; last: {victim}"),
            template("Killed for lack of memory: {who}, {size_bytes}, at {died_wall}"),
            template("Killed for lack of memory: {who}, {size_bytes}"),
            template("Killed for lack of memory: probably {likely}, {size_bytes}"),
            template("The kernel killed a process for lack of memory"),
        ),
        (
            template("Each hit the limit of its cgroup: {victims}."),
            template(
                "It held {anon_bytes} of its own and {shmem_bytes} of shared memory; {resource} was used up."
            ),
            template(
                "The kernel's log cannot be read: {likely} was gone, and its memory back, when the counter "
                "rose."
            ),
            template(
                "The kernel's counter of OOM kills rose; its log cannot be read, so the victim is unknown."
            ),
        ),
        template(
            "Run fewer jobs at once (MAX_JOBS, -j, num_workers), lower the batch size or context, or give "
            "the machine more: memory= and swap= under [wsl2] in .wslconfig. 'wslgpud incidents' shows who "
            "grew."
        ),
    ),
    "vram_residency_failed": RuleText(
        template("VRAM cannot be made resident"),
        (template("{resource}: Windows could not make VRAM resident (make_resident failed)"),),
        (template("Kernel: {text}. Under WSL2 this means that VRAM is used up, even if some looks free."),),
        template(
            "Save a checkpoint and stop what uses the card; do not simply try again: retries on a full card "
            "have crashed Windows. Then stay below about 80 % of it, close desktop programs that hold VRAM, "
            "and do without expandable_segments and much pinned memory, which WSL limits."
        ),
    ),
    "gpu_error": RuleText(
        template("GPU error"),
        (template("{resource}: the driver reports Xid {xid}"),),
        (template("Kernel: {text}"),),
        template(
            "Save your work. Look the number up at https://docs.nvidia.com/deploy/xid-errors/ ; 48, 63, 64, "
            "92, 94 and 95 concern its memory, 79 means that the card has left the bus: power, cable or card."
        ),
    ),
    "gpu_lost": RuleText(
        template("GPU lost"),
        (template("{resource} does not answer any more"),),
        (template("The driver lists the card {uuid} and cannot reach it."),),
        template(
            "Programs on it have failed. Restart the machine (under WSL2: wsl --shutdown in Windows, then "
            "start again); if it happens again, check power supply, heat and riser cable."
        ),
        (template("{resource} answers again"),),
    ),
    "gpu_driver_gone": RuleText(
        template("GPU driver silent"),
        (template("The NVIDIA driver has stopped answering"),),
        (template("{error}"),),
        template(
            "After a driver update in Windows: wsl --shutdown, then start again. While Windows resets the "
            "driver (TDR) it comes back by itself. RAM is still watched."
        ),
        (template("The NVIDIA driver answers again"),),
    ),
    "swap_thrash": RuleText(
        template("thrashing"),
        (
            template("Programs stall for lack of RAM: {stalled_ratio} of the time lost"),
            template(
                "Thrashing: {read_per_second_bytes}/s from swap and {written_per_second_bytes}/s into it"
            ),
        ),
        (template("Swap: {read_per_second_bytes}/s in, {written_per_second_bytes}/s out."),),
        template(
            "Pause or stop the largest program (kill -STOP keeps its work), then run fewer jobs at once. "
            "More swap does not help; more RAM does (memory= in .wslconfig)."
        ),
        (template("Programs no longer stall for lack of RAM"),),
    ),
    "gpu_throttled": RuleText(
        template("GPU throttled"),
        (
            template("{resource} is throttled at {temperature_celsius} °C ({reasons})"),
            template("{resource} is throttled ({reasons})"),
        ),
        (template("Reasons given by the driver: {reasons}. A mere power cap is not among them."),),
        template(
            "Check fans, dust and airflow, or lower the power limit (nvidia-smi -pl, in Windows): the last "
            "20 % of power bring a few per cent of speed. hw_power_brake points to the power supply."
        ),
        (template("{resource} is no longer throttled"),),
    ),
    "vram_spill": RuleText(
        template("VRAM spilling into RAM"),
        (
            template(
                "{resource} is full: {grown_bytes} moved to RAM, programs on it become many times slower"
            ),
            template(
                "{resource} is full and its memory moves to RAM: programs on it become many times slower"
            ),
        ),
        (
            template(
                "Windows counts {dedicated_bytes} on the card and {shared_bytes} of shared memory for it."
            ),
            template("Windows counts {shared_bytes} of shared memory for the card."),
        ),
        wording.ADVICE["spilled"],
        (template("{resource} no longer spills into Windows' RAM"),),
    ),
    "windows_memory_low": RuleText(
        template("Windows short of memory"),
        (
            template(
                "Windows can commit only {commit_left_bytes} more of {commit_limit_bytes}: its programs will "
                "fail"
            ),
            template(
                "Windows is short of memory: {available_bytes} left of {total_bytes}; WSL holds {vm_bytes}"
            ),
            template("Windows is short of memory: {available_bytes} left of {total_bytes}"),
        ),
        (
            template(
                "WSL's virtual machine holds {vm_bytes}, of which Linux does not use {unreturned_bytes}."
            ),
            template("WSL's virtual machine holds {vm_bytes}."),
        ),
        template(
            "Close programs in Windows. Linux gives memory back only when it is free here: stop what you do "
            "not need, then sync; echo 1 | sudo tee /proc/sys/vm/drop_caches. For good: a smaller memory= "
            "under [wsl2] and autoMemoryReclaim=gradual under [experimental] in .wslconfig, a larger page "
            "file."
        ),
        (
            template("Windows has memory again: {available_bytes} of {total_bytes} free"),
            template("Windows has memory again"),
        ),
    ),
    "state_disk_full": RuleText(
        template("disk nearly full"),
        (template("Disk nearly full: {bytes} left on {place}, where wslgpud keeps its history"),),
        advice=template(
            "Make room (checkpoints, ~/.cache/huggingface, pip cache purge, docker system prune). When it is "
            "full, training runs lose their checkpoints; wslgpud keeps warning from memory."
        ),
        over=(template("{place} has room again: {bytes} left"),),
    ),
    "windows_disk_full": RuleText(
        template("Windows' disk nearly full"),
        (template("Windows' disk nearly full: {bytes} left on {place}"),),
        (template("The Linux disk is a file (ext4.vhdx) that grows there, whatever df says inside."),),
        template(
            "Make room in Windows now: when it is full, WSL mounts your disk read-only or does not start. "
            "Deleting files in Linux does not give room back until the vhdx is compacted (wsl --manage "
            "DISTRO --set-sparse)."
        ),
        (template("{place} has room again: {bytes} left"),),
    ),
    "read_only_disk": RuleText(
        template("disk read-only"),
        (template("{place} has become read-only"),),
        (template("Programs cannot save anything there, checkpoints included."),),
        template(
            "Under WSL2 this follows an error of the virtual disk or a full Windows disk: save elsewhere, "
            "make room in Windows, wsl --shutdown, and check the disk (dmesg, e2fsck) before you go on."
        ),
        (template("{place} can be written to again"),),
    ),
    "source_stale": RuleText(
        template("no data from a source"),
        (template("No data from {place} any more: {error}"), template("No data from {place} any more")),
        (template("What this source measures is missing from forecasts, metrics and history."),),
        template("See 'wslgpud status' and the daemon's log for the cause."),
        (template("{place} delivers data again"),),
    ),
    "clock_jump": RuleText(
        template("clock jumped"),
        (
            template("The clock jumped by {seconds}: the machine slept, or the time was set"),
            template("The clock jumped"),
        ),
        advice=template("Nothing to do. Gaps in the history around it are no outage."),
    ),
    "store_failing": RuleText(
        template("history cannot be written"),
        (template("History cannot be written: {error}"), template("History cannot be written")),
        (template("Warnings go out all the same; what cannot be written is kept in memory for a while."),),
        template("Look at the disk that holds the database: full, read-only, or failing."),
        (template("History is written again"),),
    ),
    "store_damaged": RuleText(
        template("history was damaged"),
        (
            template("The history's database was damaged: {damage}"),
            template("The history's database was damaged"),
        ),
        (template("The damaged file is set aside, a new one begun, and what can be read is taken over."),),
        template(
            "Look at the disk (dmesg, SMART). 'wslgpud db check' says whether the current file is sound."
        ),
    ),
    "unclean_end": RuleText(
        template("unclean end"),
        (
            template("The machine ended without a shutdown at {last_wall}; {growing} was growing"),
            template("The machine ended without a shutdown at {last_wall}"),
            template("wslgpud was killed at {killed_wall}; it runs again"),
        ),
        (template("Before it: {trouble}."), template("Last sample {last_wall}.")),
        template(
            "'wslgpud incidents' shows the last minutes before it: who grew, how much was left, and the "
            "kernel's log."
        ),
    ),
}


def compose(row: Transition) -> Text:
    """Return what a change of level says."""
    kind, known = kind_of(row), RULES.get(row.rule)
    if row.rule == MEMORY and row.forecast is not None:
        text = _memory(row.forecast, row)
        if kind == "repeated":
            again = say("Again: {headline}", headline=text.headline)
            return text._replace(headline=again if len(str(again)) <= HEADLINE_CHARACTERS else text.headline)
        return text
    if known is None:  # of another version
        return Text(row.message)
    facts: dict[str, Fact] = {"resource": row.resource, **row.facts}
    facts.setdefault("place", row.resource.partition(":")[2] or row.resource)
    if kind == "closed":
        return Text(filled(known.over if "unseen_seconds" not in facts else (), facts) or _over(known, facts))
    return Text(
        _fitting(known.headlines, facts) or row.message,
        tuple(filter(None, [filled(known.evidence, facts)])),
        Message(known.advice),
    )


def text_now(incident: Incident, forecast: Forecast | None) -> Text:
    """Return what is to be said of an open incident at this moment.

    Args:
        incident: that is open.
        forecast: of its resource now, where there is one: what was left when it opened is no news.
    """
    if incident.rule == MEMORY and forecast is not None:
        return _memory(with_victim(forecast, incident.kill), incident.last)
    return compose(incident.last)


def first_line(message: Said, tongue: Tongue = ENGLISH) -> str:
    """Return a headline as it is shown and sent, whatever foreign names are in it."""
    return one_line(tongue.text(message), HEADLINE_CHARACTERS)


def _memory(forecast: Forecast, row: Transition) -> Text:
    if row.new == Level.OK and forecast.level > Level.OK:  # the incident is over, whatever is thought now
        return Text(_over(RULES[MEMORY], {"resource": row.resource}))
    return Text(wording.headline(forecast), wording.evidence(forecast), wording.advice(forecast, row.facts))


def _fitting(templates: tuple[str, ...], facts: dict[str, Fact]) -> Message:
    """Return a first line; who was killed is told more briefly where it is too long."""
    message = filled(templates, facts)
    who = facts.get("who", "")
    for brief in briefer(who) if isinstance(who, str) else ():
        if len(str(message)) > HEADLINE_CHARACTERS:
            message = filled(templates, {**facts, "who": brief})
    return message


def _over(text: RuleText, facts: dict[str, Fact]) -> Message:
    facts = {**facts, "what": Message(text.title)}
    return filled(_OVER, facts)


_OVER = (
    template("Taken as over: {what} ({resource}), not measured for {unseen_seconds}"),
    template("Over: {what} ({resource})"),
)
