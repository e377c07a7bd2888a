"""What commands with ``--plot`` share: the option alone draws on the terminal, with a name into that file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from wslgpud.plots import ENDINGS

#: what ``--plot`` without a name stands for
TERMINAL = "-"
#: of a name that cannot be drawn the picture itself says so
_FILES = (*ENDINGS, ".html", ".pdf", ".jpg", ".jpeg", ".gif", ".webp")


class PlotCommand(TyperCommand):
    """Lets ``--plot`` stand without a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give ``--plot`` a value unless a picture's name follows."""
        for number, text in enumerate(args):
            follows = "".join(args[number + 1 : number + 2])
            if text == "--plot" and not follows.lower().endswith(_FILES):
                args[number] = f"--plot={TERMINAL}"
        return super().parse_args(ctx, args)


def picture(plot: Path | None) -> Path | None:
    """Return the file to draw into; None where the terminal is meant, or nothing."""
    return None if plot is None or str(plot) == TERMINAL else plot
