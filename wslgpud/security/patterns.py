"""Shell patterns (``*``, ``?``, ``[...]``) from strangers: time linear in the text, nothing kept. Pure.

The standard library's ``fnmatch`` makes a regular expression of each pattern and keeps the last 32,768 of
them: a quarter of a gigabyte after a few hundred requests with patterns of some kilobytes, for as long as the
process lives.
"""

from __future__ import annotations

from collections.abc import Callable


class _Masks(dict[str, int]):
    """For each character the tokens that accept it, one bit each, worked out when it first occurs."""

    def __init__(self, tokens: list[Callable[[str], bool]]) -> None:
        super().__init__()
        self._tokens = tokens

    def __missing__(self, character: str) -> int:
        mask = sum(1 << place for place, accepts in enumerate(self._tokens) if accepts(character))
        self[character] = mask
        return mask


def shell_pattern(pattern: str) -> Callable[[str], bool]:
    """Return a test of whole texts against ``pattern``, as ``fnmatch.fnmatchcase`` would decide.

    The pattern becomes an automaton whose state is one integer: bit *n* is set while the first *n* tokens
    match what has been read. A text costs one step for each of its characters, whatever the pattern; there is
    nothing to backtrack into.
    """
    tokens, stars = _tokens(pattern)
    masks, end = _Masks(tokens), 1 << len(tokens)

    def matches(text: str) -> bool:
        state = 1
        for character in text:
            state = (state & stars) | ((state & masks[character]) << 1)
            if not state:
                return False
        return bool(state & end)

    return matches


def _tokens(pattern: str) -> tuple[list[Callable[[str], bool]], int]:
    """Return the tests that consume a character each, and the places (as bits) before which a star stands."""
    tokens: list[Callable[[str], bool]] = []
    stars = at = 0
    while at < len(pattern):
        character, close = pattern[at], -1
        if character == "[":
            negated = pattern.startswith("!", at + 1)
            close = pattern.find("]", at + 2 + negated)  # one that comes first belongs to the set
        if character == "*":
            stars |= 1 << len(tokens)
        elif character == "?":
            tokens.append(lambda _: True)
        elif close > 0:
            tokens.append(_one_of(pattern[at + 1 + negated : close], negated=negated))
            at = close
        else:
            tokens.append(character.__eq__)
        at += 1
    return tokens, stars


def _one_of(inside: str, *, negated: bool) -> Callable[[str], bool]:
    ranges, at = [], 0
    while at < len(inside):
        is_range = inside.startswith("-", at + 1) and at + 2 < len(inside)
        ranges.append((inside[at], inside[at + 2 if is_range else at]))
        at += 3 if is_range else 1
    return lambda character: any(low <= character <= high for low, high in ranges) is not negated
