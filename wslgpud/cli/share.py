"""Files below ``share``, beside the program: manual pages, and the scripts that shells load for completion.

``python -m wslgpud.cli.share FOLDER`` writes it; ./tests/renew does that for the wheel, which takes it along.
"""

from __future__ import annotations

import sys
from pathlib import Path

from wslgpud.cli import completion, man

#: where each shell looks by itself
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
