"""Tensors without numbers live as long as PyTorch's."""

from __future__ import annotations

from wslgpud.advise.fit.activations import Activations
from wslgpud.advise.fit.allocator import MIB, Allocator
from wslgpud.advise.fit.tape import Node, Tape, Tensor


def operations() -> Activations:
    return Activations(Tape(Allocator()), MIB, element=2, mixed=False)


def weight(own: Activations) -> Tensor:
    return own.tape.leaf(own.tape.take(MIB, 2), MIB, 2, learning=True)


def test_storage_is_free_with_the_last_reference():
    own = operations()
    x = weight(own)
    view = own.heads(x, copied=False)
    assert own.tape.allocator.allocated_bytes == 2 * MIB
    del x, view
    own.tape.backward()

    assert own.tape.allocator.allocated_bytes == 0


def test_what_the_way_back_needs_is_held_until_it_is_gone():
    own = operations()
    x = weight(own)
    y = own.activated(own.activated(x))
    assert own.tape.allocator.allocated_bytes == 3 * 2 * MIB
    assert y.node is not None
    y.node.gradient = own.tape.take(MIB, 2)
    del y
    own.tape.backward()

    assert x.node is not None
    assert x.node.gradient is not None
    assert own.tape.allocator.allocated_bytes == 2 * 2 * MIB  # the weight and its gradient


def test_nothing_is_held_where_nothing_learns():
    own = operations()
    x = own.tape.leaf(own.tape.take(MIB, 2), MIB, 2, learning=False)
    y = own.activated(own.activated(x))

    assert own.tape.allocator.allocated_bytes == 2 * 2 * MIB
    assert y.node is None


def test_a_gradient_is_added_in_place_but_not_to_a_view():
    own = operations()
    addresses = []
    for viewed in (False, True):
        node = Node(None)
        first, second = own.tape.take(MIB, 2), own.tape.take(MIB, 2)
        first.viewed = viewed
        own.tape.add(node, first)
        own.tape.add(node, second)
        addresses.append(node.gradient is first)

    assert addresses == [True, False]
