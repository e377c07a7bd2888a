"""Meaning and remedy of each NVML error, on plain Linux and under WSL2."""

from __future__ import annotations

from collections.abc import Mapping

from wslgpud.words import TEMPLATES, Message, MessageLike, say

#: error -> its meaning, and the remedy on plain Linux ("native") and, where different, under "wsl"
REMEDIES: Mapping[str, Mapping[str, str]] = TEMPLATES["nvml"]


def _remedy(error: str, *, wsl: bool) -> Message:
    return Message({**TEMPLATES["driver"], **REMEDIES.get(error, {})}["wsl" if wsl else "native"])


def explain_silence(meaning: MessageLike, *, wsl: bool, crashed: bool = False) -> Message:
    """Return what happened and the remedy for a driver that hung or crashed."""
    remedy = Message(TEMPLATES["driver"]["crash"]) if wsl and crashed else _remedy("", wsl=wsl)
    return say("{meaning}; {remedy}", meaning=meaning, remedy=remedy)


def explain_lost(error: str, *, wsl: bool) -> Message:
    """Return the remedy for one card that does not answer while others do."""
    return _remedy(error if error == "RESET_REQUIRED" else "GPU_IS_LOST", wsl=wsl)


def explain_no_card(*, wsl: bool) -> Message:
    """Return what it means that the driver works and counts no card, and the remedy."""
    words = TEMPLATES["no_card"]
    facts = {"meaning": Message(words["meaning"]), "remedy": Message(words["wsl" if wsl else "native"])}
    return say("{meaning}; {remedy}", **facts)


def explain_unread(*, mig: bool, denied: bool) -> Message | None:
    """Return why a card that answers does not tell its memory; None where the driver gives no reason."""
    reason = "mig" if mig else "denied" if denied else ""
    return Message(TEMPLATES["unread_memory"][reason]) if reason else None


def explain(error: str, call: str, text: str, *, wsl: bool) -> Message:
    """Return the meaning of an NVML error, its remedy, and the call that returned it."""
    known = error in REMEDIES
    meaning = Message(REMEDIES[error]["meaning"]) if known else say("NVML returned {error}", error=error)
    answer = say("{call}: {answer}", call=call, answer=text or error)
    remedy = say("{remedy} ({answer})", remedy=_remedy(error, wsl=wsl), answer=answer)
    return say("{meaning}; {remedy}", meaning=meaning, remedy=remedy)
