"""Who a process is, and whose stress runs are believed."""

from __future__ import annotations

import grp
import os
import pwd
from types import SimpleNamespace

import pytest

from wslgpud.host import Host
from wslgpud.sources.procfs import Identity, Trust, identity, trust

STAT = "7 (a) R (b) {state} 42 7 7 " + "0 " * 15 + "999 8589934592 5\n"
STATUS = "Name:\ta\nUid:\t1000\t1000\t1000\t1000\nGroups:\t27 1000 \n"


@pytest.mark.parametrize(("state", "alive"), [("S", True), ("Z", False), ("X", False)])
def test_a_process_is_who_the_kernel_says(machine, state, alive):
    host = machine({"/proc/7/stat": STAT.format(state=state), "/proc/7/status": STATUS})
    assert identity(host, 7) == Identity(7, 999, 42, alive, frozenset({1000}), frozenset({27, 1000}), "a) R (b")


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"/proc/7/stat": STAT.format(state="S")},
        {"/proc/7/stat": "7 (a) S 42 7 7\n", "/proc/7/status": STATUS},
        {"/proc/7/stat": STAT.format(state="S"), "/proc/7/status": STATUS.replace("27", "x")},
    ],
)
def test_a_process_that_is_hidden_or_told_in_part_is_nobody(machine, files):
    assert identity(machine(files), 7) is None


def test_we_are_our_own_user_s_and_trusted():
    me = identity(Host(), os.getpid())
    assert (me.parent, me.alive, me.uids) == (os.getppid(), True, {os.geteuid()})
    assert trust().covers(me)
    assert trust().users == {0, os.geteuid()}


@pytest.mark.parametrize(
    ("uids", "groups", "covered"),
    [({0}, set(), True), ({5}, set(), False), ({5}, {9}, True), ({0, 5}, set(), False), ({0, 5}, {9}, False)],
)
def test_trusted_users_are_covered_but_setuid_programs_never(uids, groups, covered):
    who = Identity(7, 1, 1, True, frozenset(uids), frozenset(groups), "a")
    assert Trust(frozenset({0}), group=9).covers(who) is covered


def test_user_groups_do_not_count_without_a_service_group():
    who = Identity(7, 1, 1, True, frozenset({5}), frozenset({9}), "a")
    assert not Trust(frozenset({0})).covers(who)


def nobody(number):
    raise KeyError(number)


@pytest.mark.parametrize(
    ("user", "group", "counts"),
    [("wslgpud", "wslgpud", True), ("me", "wslgpud", False), ("wslgpud", "users", False), ("me", "me", False)],
)
def test_our_group_counts_only_for_the_service_in_its_own_group(monkeypatch, user, group, counts):
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name=user))
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name=group))
    assert trust().group == (os.getegid() if counts else None)


@pytest.mark.parametrize(("module", "look_up"), [(pwd, "getpwuid"), (grp, "getgrgid")])
def test_the_group_of_a_user_without_a_name_does_not_count(monkeypatch, module, look_up):
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="wslgpud"))
    monkeypatch.setattr(module, look_up, nobody)
    assert trust().group is None
