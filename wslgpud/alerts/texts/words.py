"""What a language must have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wslgpud.units import resource_name


@dataclass(frozen=True)
class RuleText:
    """A rule in words: its title, first lines, evidence (each from best known to least), and advice."""

    title: str
    headlines: tuple[str, ...]
    evidence: tuple[str, ...]
    advice: str


@dataclass(frozen=True)
class MemoryText:
    """The memory forecast in words; ``causes`` by what points to exhaustion, ``advice`` by it, who, or where."""

    starts: tuple[str, ...]
    ends: tuple[str, ...]
    causes: Mapping[str, tuple[str, ...]]
    growing: tuple[str, ...]
    chances: tuple[str, ...]
    advice: Mapping[str, str]


@dataclass(frozen=True)
class Words:
    """A language."""

    over: str  # an incident that has ended; {what} is the rule's title
    digest: str  # several alerts in one message; {count}
    repeated: str  # {headline}
    levels: Mapping[str, str]
    rules: Mapping[str, RuleText]
    memory: MemoryText
    space: str = " "  # between sentences
    keeps_headline: bool = False  # the risk engine writes first lines in this language already
    resources: Mapping[str, str] = field(default_factory=dict)
    unit_words: Mapping[str, str] = field(default_factory=dict)

    def resource(self, resource: str) -> str:
        """Return the name of a resource as people write it."""
        kind, _, rest = resource.partition(":")
        if kind in self.resources:
            return f"{self.resources[kind]} {rest}".strip()
        return resource_name(resource)

    def units(self, text: str) -> str:
        """Translate the words in a figure (``4 min``)."""
        for word, ours in self.unit_words.items():
            text = text.replace(word, ours)
        return text
