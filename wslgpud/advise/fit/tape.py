"""A backward pass without numbers: tensors that have only a size, and the order in which autograd takes and frees them.

Storage goes back to the allocator with the last reference to it, as in PyTorch; so what a function here holds, and
until when, is what its namesake in PyTorch holds. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from wslgpud.advise.fit.allocator import Allocator


class Storage:
    """The bytes of one tensor and of all views of it."""

    __slots__ = ("_allocator", "_block", "size", "viewed")

    def __init__(self, allocator: Allocator, size: int) -> None:
        self._allocator = allocator
        self._block = allocator.take(size)
        self.size = size
        #: autograd adds the next gradient to one in place, but not to a view, as a matrix product leaves one
        self.viewed = False

    def __del__(self) -> None:
        self._allocator.give(self._block)


class Node:
    """A step of the backward pass; ``gradient`` is the sum of what has come for its outcome so far."""

    __slots__ = ("_run", "gathers", "gradient")

    def __init__(self, run: Callable[[Node], None] | None, *, gathers: bool = False) -> None:
        self._run = run
        self.gathers = gathers
        self.gradient: Storage | None = None

    def take(self) -> Storage:
        """Return the gradient and let go of it; only what a gradient came for is gone back."""
        gradient, self.gradient = self.gradient, None
        if gradient is None:
            raise ValueError("no gradient has come")
        return gradient

    def run(self) -> None:
        """Go this step back, if anything came for it; what was kept for it is free afterwards."""
        run, self._run = self._run, None
        if run is not None and (self.gradient is not None or self.gathers):
            run(self)


class Tensor:
    """What an operation returns; a leaf's node has nothing before it."""

    __slots__ = ("element", "node", "numbers", "storage")

    def __init__(self, storage: Storage, numbers: int, element: int, node: Node | None) -> None:
        self.storage = storage
        self.numbers = numbers
        self.element = element
        self.node = node


class Tape:
    """What was done, so that it can be gone back."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.recording = True
        self._nodes: list[Node] = []

    def take(self, numbers: int, element: int) -> Storage:
        """Return storage for so many numbers of so many bytes."""
        return Storage(self.allocator, numbers * element)

    def leaf(self, storage: Storage, numbers: int, element: int, *, learning: bool) -> Tensor:
        """Return a parameter; one that learns keeps its gradient."""
        return Tensor(storage, numbers, element, Node(None) if learning else None)

    def kept(self, *storages: Storage) -> list[Storage]:
        """Return what an operation keeps for the way back: nothing, if there is none."""
        return list(storages) if self.recording else []

    def made(
        self, storage: Storage, numbers: int, element: int, back: Callable[[Node], None], *before: Node | None
    ) -> Tensor:
        """Return what an operation made, and remember how its gradient goes back, if anything before it wants one."""
        if not self.recording or not any(before):
            return Tensor(storage, numbers, element, None)
        node = Node(back)
        self._nodes.append(node)
        return Tensor(storage, numbers, element, node)

    def gather(self, back: Callable[[Node], None]) -> None:
        """Remember a step that looks itself for what has come; it is run in any case."""
        if self.recording:
            self._nodes.append(Node(back, gathers=True))

    def add(self, node: Node | None, gradient: Storage) -> None:
        """Add a gradient to what has come for a node."""
        if node is None:
            return
        had = node.gradient
        if had is None:
            node.gradient = gradient
        elif had.viewed:
            node.gradient = Storage(self.allocator, had.size)

    def mark(self) -> int:
        """Return a place to go back to."""
        return len(self._nodes)

    def backward(self, mark: int = 0) -> None:
        """Go back to a place, last step first."""
        while len(self._nodes) > mark:
            self._nodes.pop().run()
