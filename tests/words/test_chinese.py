"""The Chinese catalogue is one text: one way to set spaces and marks, one word for each thing."""

from __future__ import annotations

import re

import polib
import pytest

from tests.words.catalogue import path_of
from wslgpud.words import say, translator

ENTRIES = [(entry.msgid, entry.msgstr or entry.msgstr_plural[0]) for entry in polib.pofile(str(path_of("zh")))]
CHINESE = "\u4e00-\u9fff"
#: what is not written, and where it is
STYLE = {
    "no space between Chinese and a Latin word, a figure or a blank": (
        rf"[{CHINESE}][A-Za-z0-9{{]|[A-Za-z0-9}}%][{CHINESE}]"
    ),
    "brackets of full width": r"[\uff08\uff09]",
    "no space outside a bracket": rf"[{CHINESE}A-Za-z0-9}}]\((?=[^)]*[{CHINESE}])|\)[{CHINESE}]",
    "a mark of half width in a Chinese sentence": rf"[{CHINESE}}}][:;,?!](?= |$)|[:;,?!] [{CHINESE}{{]",
    "no space before a per cent sign": r"\d%",
}
#: the one word for a thing, and others for it
TERMS = {
    "交换区": ("交换空间",),  # swap
    "文件夹": ("目录",),
    "告警": ("预警", "警报"),  # an alert; a level is 警告
    "通道": ("渠道",),
    "响应": ("应答",),
    "压测": ("压力测试",),  # a stress run
    "监控": ("监测",),
    "退出码": ("退出状态", "状态码"),
    "静默": ("静音",),
    "你": ("您",),
}


@pytest.mark.parametrize("rule", STYLE)
def test_the_text_is_set_in_one_way(rule: str) -> None:
    assert [text for _, text in ENTRIES if re.search(STYLE[rule], text)] == []


@pytest.mark.parametrize("term", TERMS)
def test_a_thing_has_one_name(term: str) -> None:
    assert [text for _, text in ENTRIES if any(other in text for other in TERMS[term])] == []
    assert any(term in text for _, text in ENTRIES)


def test_a_card_is_called_so_where_english_does() -> None:
    assert [text for said, text in ENTRIES if "显卡" in text and not re.search("card|Graph|make_resident", said)] == []


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            say("{resource} is fine again: {room_bytes} free", resource="ram", room_bytes=1 << 30),
            "内存已恢复正常：空闲 1.0 GiB",
        ),
        (
            say("{resource} is fine again: {room_bytes} free", resource="gpu0", room_bytes=1 << 30),
            "GPU 0 已恢复正常：空闲 1.0 GiB",
        ),
        (say("{time} ago: {what}", time=say("{number} s", number=3), what="我的 文件"), "3 秒前：我的 文件"),
    ],
)
def test_filled_in_text_is_set_as_if_written_there(message, text) -> None:
    assert translator("zh").text(message) == text
