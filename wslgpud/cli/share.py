"""Files below ``share``, next to the program: manual pages and shell completion scripts.

``python -m wslgpud.cli.share FOLDER`` writes them; ./tests/renew does so for the wheel, which includes them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from wslgpud.cli import completion, man

#: where each shell looks by default
_COMPLETIONS = {
    "bash": "bash-completion/completions/wslgpud",
    "fish": "fish/vendor_completions.d/wslgpud.fish",
    "zsh": "zsh/site-functions/_wslgpud",
}


def files() -> dict[str, str]:
    """Return the text of each file by its path below ``share``."""
    return man.pages() | {path: f"{completion.script(shell)}\n" for shell, path in _COMPLETIONS.items()}


def write(folder: Path) -> None:
    """Write all of them below a folder."""
    for name, text in files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
