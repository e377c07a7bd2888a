"""English left in a Chinese text: Latin words that are no name, unit, path or command.

A screen, a message or a page that speaks Chinese has none. Names are the same in every language: products and units
(``names.txt``), programs with their arguments, paths, addresses, settings and whatever looks like code
(``vm.swappiness``, ``sm_120``, ``MAX_JOBS``, ``--all``). What only one machine or test knows is for the caller to name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from wslgpud.advise.wslconfig.presets import PRESETS
from wslgpud.cli import app
from wslgpud.probes.wsl_config import FILES

#: one a line: units, products, formats, acronyms, and words that users of PyTorch leave in English
NAMES = frozenset(Path(__file__).with_name("names.txt").read_text().split())
_CHINESE = r"\u3000-\u303f\u4e00-\u9fff\uff00-\uffef"
#: programs whose arguments may be words; the line up to Chinese, two spaces or a comment is theirs
_PROGRAMS = (
    "apt",
    "apt-get",
    "cat",
    "cd",
    "cp",
    "curl",
    "dmesg",
    "docker",
    "dockerd",
    "du",
    "echo",
    "git",
    "journalctl",
    "make",
    "mkdir",
    "nvidia-smi",
    "pip",
    "pipx",
    "printf",
    "python",
    "python3",
    "rm",
    "rsync",
    "sh",
    "sudo",
    "systemctl",
    "tar",
    "uv",
    "uvx",
    "wsl",
    "wsl.exe",
    "wslc",
)
_COMMAND = re.compile(
    rf"(?<![\w./-])(?:{'|'.join(map(re.escape, sorted(_PROGRAMS, key=len, reverse=True)))})"
    rf"(?![\w.-])[^\n{_CHINESE}]*?(?=[ ]{{2,}}|[ ]#|\n|[{_CHINESE}]|$)"
)
#: backticks, paths, addresses, options, blanks, words with a digit, a sign or a capital within: code, files
_CODE = re.compile(
    r"`[^`\n]+`"
    r"|https?://[^\s" + _CHINESE + r"]+"
    r"|(?<!\w)~?/[^\s" + _CHINESE + r",;)]+"
    r"|(?<![\w-])--?[A-Za-z][\w-]*"
    r"|\{\w+\}"
    r"|\[/?[a-z0-9]+\]"
    r"|%?[\w-]*[\w%][=:.\\/_@#%+][\w\\][\w\\/=:.,_@#%+-]*"
    r"|\w*\d\w*(?:-\w+)*"
    r"|\.[A-Za-z]\w*"
    r"|(?<![A-Za-z])[A-Za-z]*[a-z][A-Z]\w*"
)
_WORD = re.compile(r"[A-Za-z]+(?:['\u2019-][A-Za-z]+)*")


def latin_words(text: str, names: Iterable[str] = ()) -> list[str]:
    """Return the Latin words in a Chinese text that are neither a name nor code, in their order.

    Args:
        text: a screen, a message or a page.
        names: what else may stand there: phrases that this machine or this test calls its own.
    """
    names = set(names)
    for name in sorted((name for name in names if not name.isalpha()), key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z]){re.escape(name)}(?![A-Za-z])", " ", text)
    for pattern in (_own_commands(), _COMMAND, _CODE):
        text = pattern.sub(" ", text)
    allowed = NAMES | _settings() | names
    return [word for word in _WORD.findall(text) if len(word) > 1 and word not in allowed]


@cache
def _settings() -> frozenset[str]:
    """Return the names of .wslconfig's keys, their sections and their words."""
    names = {name for file in FILES for key in file.keys for name in (key.name, key.section, *key.choices)}
    return frozenset(names | {name.lower() for name in names} | {"automount", "dropCache", "true", "false"})


@cache
def _own_commands() -> re.Pattern[str]:
    """Return what matches ``wslgpud`` with the commands that it has."""
    found: list[str] = []

    def walk(command: object, words: str) -> None:
        found.append(words)
        if words.endswith((" apply", " preset")):
            found.extend(f"{words} {name}" for name in PRESETS)
        for name, below in getattr(command, "commands", {}).items():
            walk(below, f"{words} {name}")

    walk(app, "wslgpud")
    longest_first = sorted(found, key=len, reverse=True)
    return re.compile(rf"(?<![\w/-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w])(?: -- [A-Z ]+)?")
