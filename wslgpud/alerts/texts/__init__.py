"""What alerts say: one catalogue, in English and in Chinese.

A text has a first line of at most 90 characters (what, when, who), the evidence, and advice for its class of
trouble. Which of a rule's sentences is used depends on what is known: the first whose blanks can be filled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from wslgpud.alerts.incidents import kind_of
from wslgpud.alerts.rules import MEMORY
from wslgpud.alerts.texts import chinese, english
from wslgpud.alerts.texts.words import Words
from wslgpud.model import Forecast, Level, Number, Transition
from wslgpud.units import duration, printable, size, speed

#: what a lock screen, a toast's first line and a mail's subject show without cutting
HEADLINE_CHARACTERS = 90
LANGUAGES: Mapping[str, Words] = {"en": english.WORDS, "zh": chinese.WORDS}
#: facts that come from programs: their names may be anything
_FOREIGN_CHARACTERS = 200
_BLANK = re.compile(r"\{(\w+)\}")


class Text(NamedTuple):
    """What an alert says."""

    headline: str
    evidence: str
    advice: str


def language(setting: str, environ: Mapping[str, str]) -> str:
    """Return the language of the configuration, else of the locale, else English."""
    if setting in LANGUAGES:
        return setting
    locale = environ.get("LC_ALL") or environ.get("LC_MESSAGES") or environ.get("LANG") or ""
    return "zh" if locale.startswith("zh") else "en"


def compose(transition: Transition, tongue: str = "en") -> Text:
    """Return what a transition says in a language."""
    words = LANGUAGES[tongue]
    kind = kind_of(transition)
    if transition.rule == MEMORY and transition.forecast is not None:
        text = _memory(transition, transition.forecast, words)
    else:
        text = _rule(transition, words)
    if kind == "closed":
        name = words.resource(transition.resource)
        what = words.rules[transition.rule].title if transition.rule in words.rules else transition.rule
        return Text(_first_line(words.over.format(what=what, resource=name)), text.evidence, "")
    if kind == "repeated" and transition.rule == MEMORY:
        return text._replace(headline=_first_line(words.repeated.format(headline=text.headline)))
    return text


def filled(sentences: tuple[str, ...], facts: Mapping[str, str | Number], words: Words) -> str:
    """Return the first sentence whose blanks are all known, filled; empty when there is none."""
    for sentence in sentences:
        needed = _BLANK.findall(sentence)
        if all(name in facts and facts[name] != "" for name in needed):
            return sentence.format_map({name: shown(name, facts[name], words) for name in needed})
    return ""


def shown(name: str, value: str | Number, words: Words) -> str:
    """Write a fact the way people do; its name tells the unit."""
    if isinstance(value, str):
        return clean(value)
    if name.endswith("bytes_per_second"):
        # A rate of growth has a sign; of what goes through swap the words say in which direction.
        return words.units(speed(value) if name == "rate_bytes_per_second" else speed(value)[1:])
    if name.endswith("bytes"):
        return size(value)
    if name.endswith("seconds"):
        return words.units(duration(abs(value)))
    if name.endswith("ratio"):
        return f"{100 * value:.0f} %"
    return f"{value:g}"


def clean(text: str, most: int = _FOREIGN_CHARACTERS) -> str:
    """Make foreign text fit for one line: what controls terminals or cannot be encoded becomes a space."""
    line = " ".join(printable(text[: 4 * most], instead=" ").split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _first_line(text: str) -> str:
    return clean(text, HEADLINE_CHARACTERS)


def _rule(transition: Transition, words: Words) -> Text:
    texts = words.rules.get(transition.rule)
    facts = {"resource": words.resource(transition.resource), **transition.facts}
    facts.setdefault("place", transition.resource.partition(":")[2] or transition.resource)
    if texts is None:  # of another version
        return Text(_first_line(transition.headline), "", "")
    return Text(
        _first_line(filled(texts.headlines, facts, words) or transition.headline),
        filled(texts.evidence, facts, words),
        texts.advice,
    )


def _memory(transition: Transition, forecast: Forecast, words: Words) -> Text:
    written = transition.headline if words.keeps_headline else ""
    return Text(
        _first_line(written or _memory_headline(forecast, words)),
        _memory_evidence(forecast, words),
        "" if transition.new == Level.OK else _memory_advice(forecast, transition.facts, words),
    )


def _memory_headline(forecast: Forecast, words: Words) -> str:
    eta, early, late = forecast.eta_seconds, forecast.eta_early_seconds, forecast.eta_late_seconds
    facts: dict[str, str | Number] = {
        "resource": words.resource(forecast.resource),
        "left_bytes": forecast.headroom_bytes,
        "capacity_bytes": forecast.capacity_bytes,
    }
    if eta is not None:
        facts["eta_seconds"] = eta
        if early is not None and late is not None:
            unit = 3600.0 if eta >= 90 * 60 else 60.0 if eta >= 90 else 1.0
            low, high = max(1, round(early / unit)), max(1, round(late / unit))
            if low < high:
                facts["range"] = f"{low}-{high}"
    rate = forecast.rate_bytes_per_second
    if forecast.cause == "expected":  # what grows now may be something else
        facts |= {"peak_bytes": forecast.expected_peak_bytes} if forecast.expected_peak_bytes else {}
    elif forecast.cause == "paused":
        facts["paused_seconds"] = forecast.window_seconds or 0.0
    elif rate and rate > 0:
        facts["rate_bytes_per_second"] = rate
    start, end = filled(words.memory.starts, facts, words), filled(words.memory.ends, facts, words)
    room = HEADLINE_CHARACTERS - len(start) - len(end) - 1
    who = "" if forecast.cause == "paused" else clean(forecast.who)
    if len(who) > room:
        who = who[: room - 1] + "…" if room > 8 else ""
    return _first_line(f"{start}{who} {end}" if who else start + end)


def _memory_evidence(forecast: Forecast, words: Words) -> str:
    facts: dict[str, str | Number] = {
        "resource": words.resource(forecast.resource),
        "left_bytes": forecast.headroom_bytes,
        "capacity_bytes": forecast.capacity_bytes,
    }
    if forecast.window_seconds:
        facts["window_seconds"] = forecast.window_seconds
    if forecast.who:
        facts["who"] = forecast.who
    if forecast.expected_peak_bytes:
        facts["peak_bytes"] = forecast.expected_peak_bytes
    sentences = words.memory.causes.get(forecast.cause, ())
    parts = [filled(sentences, facts, words)]
    if forecast.cause not in {"expected", "paused"}:  # it may not have grown at all yet, or no longer
        parts.append(filled(words.memory.growing, facts, words))
    within = {horizon: p for horizon, p in forecast.probabilities.items() if p >= 0.05}
    if within:
        horizon = min(within, key=lambda h: (within[h] < 0.5, h))
        chance: dict[str, str | Number] = {"within_seconds": horizon, "chance_ratio": within[horizon]}
        parts.append(filled(words.memory.chances, chance, words))
    return words.space.join(part for part in parts if part)


def _memory_advice(forecast: Forecast, facts: Mapping[str, str | Number], words: Words) -> str:
    if jobs := filled((words.memory.advice["jobs"],), facts, words):
        return jobs
    if forecast.cause in words.memory.advice:
        return words.memory.advice[forecast.cause]
    if forecast.who_kind in words.memory.advice:
        return words.memory.advice[forecast.who_kind]
    place = "gpu" if forecast.resource.startswith("gpu") else forecast.resource.partition(":")[0]
    if place != "ram" and place in words.memory.advice:
        return words.memory.advice[place]
    return words.memory.advice["ram"]
