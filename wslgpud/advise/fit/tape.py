"""A backward pass on sizes alone: tensors without data, allocated and freed in autograd's order. Pure.

Storage returns to the allocator with the last reference to it, as in PyTorch; so each function here must hold the same
tensors for as long as its namesake in PyTorch.
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
        #: autograd accumulates gradients in place, except into a view, such as a matrix product's
        self.viewed = False

    def __del__(self) -> None:
        self._allocator.give(self._block)


class Node:
    """A step of the backward pass; ``gradient`` is the sum of gradients of its output so far."""

    __slots__ = ("_run", "gathers", "gradient")

    def __init__(self, run: Callable[[Node], None] | None, *, gathers: bool = False) -> None:
        self._run = run
        self.gathers = gathers
        self.gradient: Storage | None = None

    def take(self) -> Storage:
        """Return the gradient and release it; steps without one are skipped."""
        gradient, self.gradient = self.gradient, None
        if gradient is None:
            raise ValueError("no gradient has come")
        return gradient

    def run(self) -> None:
        """Run this step if it has a gradient; its saved tensors are freed afterwards."""
        run, self._run = self._run, None
        if run is not None and (self.gradient is not None or self.gathers):
            run(self)


class Tensor:
    """The result of an operation; a leaf's node has no predecessor."""

    __slots__ = ("element", "node", "numbers", "storage")

    def __init__(self, storage: Storage, numbers: int, element: int, node: Node | None) -> None:
        self.storage = storage
        self.numbers = numbers
        self.element = element
        self.node = node


class Tape:
    """The recorded operations, for the backward pass."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.recording = True
        self._nodes: list[Node] = []

    def take(self, numbers: int, element: int) -> Storage:
        """Return storage for a number of elements of a size in bytes."""
        return Storage(self.allocator, numbers * element)

    def leaf(self, storage: Storage, numbers: int, element: int, *, learning: bool) -> Tensor:
        """Return a parameter; a trained one keeps its gradient."""
        return Tensor(storage, numbers, element, Node(None) if learning else None)

    def kept(self, *storages: Storage) -> list[Storage]:
        """Return the tensors saved for the backward pass: none, if there is none."""
        return list(storages) if self.recording else []

    def made(
        self, storage: Storage, numbers: int, element: int, back: Callable[[Node], None], *before: Node | None
    ) -> Tensor:
        """Return an operation's output, and record its backward step if any input requires a gradient."""
        if not self.recording or not any(before):
            return Tensor(storage, numbers, element, None)
        node = Node(back)
        self._nodes.append(node)
        return Tensor(storage, numbers, element, node)

    def gather(self, back: Callable[[Node], None]) -> None:
        """Record a step that collects its gradients itself; it always runs."""
        if self.recording:
            self._nodes.append(Node(back, gathers=True))

    def add(self, node: Node | None, gradient: Storage) -> None:
        """Add a gradient to a node's."""
        if node is None:
            return
        had = node.gradient
        if had is None:
            node.gradient = gradient
        elif had.viewed:
            node.gradient = Storage(self.allocator, had.size)

    def mark(self) -> int:
        """Return a position on the tape."""
        return len(self._nodes)

    def backward(self, mark: int = 0) -> None:
        """Run the backward pass to a position, last step first."""
        while len(self._nodes) > mark:
            self._nodes.pop().run()
