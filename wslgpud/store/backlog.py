"""A queue whose items stay, though they are committed, until the disk is known to have them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Backlog(Generic[_T]):
    """What is to be written, oldest first: committed items, then those that wait.

    A commit in calm only hands rows to the kernel. If the disk then fails to take them, Linux says so once
    and forgets them, and only we still have them.
    """

    def __init__(self, items: Iterable[_T] = ()) -> None:
        """Begin with items that wait."""
        self._items = deque(items)
        self._committed = 0

    def __len__(self) -> int:
        """Count the items that wait to be committed."""
        return len(self._items) - self._committed

    def __iter__(self) -> Iterator[_T]:
        """Iterate over the items that wait."""
        return islice(self._items, self._committed, None)

    def put(self, item: _T) -> None:
        """Let an item wait."""
        self._items.append(item)

    def replace(self, changed: Callable[[_T], _T]) -> None:
        """Put others in place of the items; committed ones stay committed."""
        self._items = deque(map(changed, self._items))

    def committed(self, items: Iterable[_T]) -> None:
        """Note which items were committed, in order; those given up meanwhile are none of them any more."""
        for item in items:
            if len(self) and self._items[self._committed] is item:
                self._committed += 1

    def synced(self) -> None:
        """Forget what is committed: the disk has it."""
        while self._committed:
            self.give_up()

    def again(self) -> None:
        """Have everything committed again that the disk may not have."""
        self._committed = 0

    def give_up(self, index: int = 0) -> tuple[_T, bool]:
        """Drop one of the items that wait, or the oldest committed one; return it and whether it waited."""
        waited = not self._committed
        index = index if waited else 0
        item = self._items[index]
        del self._items[index]
        self._committed -= not waited
        return item, waited
