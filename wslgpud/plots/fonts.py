"""Fonts of pictures: that which matplotlib brings has no Chinese characters."""

from __future__ import annotations

from wslgpud.words import ENGLISH, Message, current, say

#: families with Chinese characters, as distributions, Windows and macOS bring them
_CHINESE = (
    "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN", "Microsoft YaHei",
    "SimHei", "PingFang SC", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback",
)  # fmt: skip
#: formats in which text stays text: whoever looks at it has the fonts
_TEXT = (".svg", ".html")


def choose() -> None:
    """Have matplotlib write the language of this command."""
    import matplotlib as mpl  # noqa: PLC0415 - 60 MB that only a picture needs

    english = current() is ENGLISH
    mpl.rcParams["font.family"] = ["DejaVu Sans", *([] if english else _installed())]
    mpl.rcParams["svg.fonttype"] = "path" if english else "none"


def trouble(kind: str) -> Message | None:
    """Say why words cannot be drawn in a format, named by its ending; None where they can."""
    if current() is ENGLISH or kind in _TEXT or _installed():
        return None
    return say(
        "no font with Chinese characters is installed: {remedy}; or draw an .svg",
        remedy="sudo apt install fonts-noto-cjk",
    )


def _installed() -> list[str]:
    from matplotlib import font_manager  # noqa: PLC0415 - see above

    known = {font.name for font in font_manager.fontManager.ttflist}
    return [name for name in _CHINESE if name in known]
