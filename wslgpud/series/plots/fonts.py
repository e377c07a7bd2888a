"""A font for pictures with Chinese words: matplotlib's own has none of their characters."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wslgpud.words import current, template

#: with Chinese characters, the better ones first
_CHINESE = (
    *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN", "Microsoft YaHei"),
    *("WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "SimHei", "SimSun", "Droid Sans Fallback", "Noto Sans CJK JP"),
)
REMEDY = template("{path}: no font with Chinese characters was found; apt install fonts-noto-cjk, or choose .svg")


def settings() -> dict[Any, Any]:
    """Return matplotlib's settings for the language: words in an SVG stay text, for the browser to write."""
    # A font has no weight that another has: nothing that a reader could do about.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    return {
        "font.family": ["sans-serif", *(families() or ())],
        "svg.fonttype": "path" if current().code == "en" else "none",
    }


def families() -> list[str] | None:
    """Return the fonts that the language needs beside the usual one; None where it has to do without."""
    if current().code == "en":
        return []
    from matplotlib.font_manager import findSystemFonts, fontManager  # see plots.figure_of

    if found := _known():
        return found
    # What was installed after matplotlib noted what there is. Not what Windows has: under WSL2 every user may
    # write there, and a file made to harm would be read by whoever draws.
    noted = {Path(font.fname) for font in fontManager.ttflist}
    for path in map(Path, findSystemFonts()):
        if path not in noted and path.is_file():
            with contextlib.suppress(OSError, RuntimeError):
                fontManager.addfont(path)
    return _known() or None


def _known() -> list[str]:
    from matplotlib.font_manager import fontManager  # see plots.figure_of

    names = {font.name for font in fontManager.ttflist}
    return [name for name in _CHINESE if name in names][:1]


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Keep matplotlib from complaining of characters that the reader's browser is going to have."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        yield
