"""Trainings as people write them, for a real torch on a processor or a card: thirteen that leak, thirteen that do not.

``python programs.py NAME STEPS DEVICE``. Each leak keeps about ``MIB`` MiB more with each step, and names the
thread that it comes from.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

MIB = 4
WIDTH = 64
#: numbers of 32 bits that make the leak of one step, as rows of the model's width
ROWS = MIB * (1 << 18) // WIDTH
STEPS, DEVICE = 200, "cpu"


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to(DEVICE)


def batch(rows: int = ROWS) -> torch.Tensor:
    return torch.randn(rows, WIDTH, device=DEVICE)


def trained(net: nn.Module, rows: Callable[[int], int] = lambda step: ROWS) -> Iterator[tuple[int, Any, Any]]:
    """Yield step, outputs and loss, before the step is made of them."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    for step in range(STEPS):
        outputs = net(batch(rows(step)))
        loss = outputs.pow(2).mean()
        yield step, outputs, loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def loss_summed() -> None:
    """``total += criterion(...)`` keeps the graph of every step: pytorch/pytorch#1840."""
    total: Any = 0
    for _, outputs, _ in trained(model()):
        total = total + outputs.detach().requires_grad_().exp().mean()


def outputs_kept() -> None:
    """Logits are collected on the device: huggingface/transformers#7232."""
    kept = []
    for _, outputs, _loss in trained(model()):
        kept.append(outputs)


def hidden_carried() -> None:
    """A recurrent state that is never detached carries the graphs of all steps: pytorch/pytorch#2198."""
    state, cell = torch.zeros(ROWS // 2, WIDTH, device=DEVICE), nn.Linear(WIDTH, WIDTH).to(DEVICE)
    for step, _, _ in trained(model()):
        state = torch.tanh(cell(state) + step)


def metric_collects() -> None:
    """A metric whose state is a list of predictions: Lightning-AI/torchmetrics#2481."""
    predictions: list[torch.Tensor] = []
    for _, outputs, _loss in trained(model()):
        predictions.append(outputs.detach().clone())


def cache_unbounded() -> None:
    """Activations stay on models that were loaded one after another: jmschrei/tangermeme#84."""
    cache: dict[int, torch.Tensor] = {}
    for step, outputs, _ in trained(model()):
        cache[step] = outputs.detach()


def hooks_added() -> None:
    """A forward hook keeps every activation: meta-pytorch/opacus#176."""
    seen: list[torch.Tensor] = []
    net = model()
    net[0].register_forward_hook(lambda module, inputs, outputs: seen.append(outputs.detach()))
    for _ in trained(net):
        pass


def replay_on_card() -> None:
    """A replay buffer on the device, with what made each sample: Kaixhin/Rainbow#33."""
    buffer: list[tuple[int, torch.Tensor]] = []
    for step, _, _ in trained(model()):
        buffer.append((step, batch()))


def gradients_kept() -> None:
    """Gradients with a graph of their own: pytorch/pytorch#4661."""
    kept = []
    net = model()
    for _, outputs, _ in trained(net):
        (gradient,) = torch.autograd.grad(outputs.pow(2).mean(), [outputs], create_graph=True)
        kept.append(gradient)


def loss_with_state() -> None:
    """A loss that keeps targets and predictions in a list: Lightning-AI/pytorch-lightning#4098."""
    teacher, targets = model(), []
    for _, _, _ in trained(model()):
        with torch.no_grad():
            targets.append(teacher(batch()))


def tracebacks_held() -> None:
    """An exception that is kept holds its frames, and those their tensors: pytorch/pytorch#10348."""
    errors: list[BaseException] = []

    def fails(outputs: torch.Tensor) -> None:
        held = outputs.detach() + 1
        raise ValueError(str(held.shape))

    for _, outputs, _ in trained(model()):
        try:
            fails(outputs)
        except ValueError as error:
            errors.append(error)


def cycles_uncollected() -> None:
    """Cycles, where the garbage collector is off for speed: pytorch/pytorch#46386."""
    gc.disable()

    class Node:
        pass

    for _, outputs, _ in trained(model()):
        node: Any = Node()
        node.me, node.tensor = node, outputs.detach()


def losses_logged() -> None:
    """Every loss and its graph in a history for a plot at the end: rballester/tntorch#19."""
    history = []
    for step, outputs, loss in trained(model()):
        history.append({"step": step, "loss": loss, "outputs": outputs.cpu().detach().clone()})


class Listed(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        self.seen.append(bytes([index % 255 + 1]) * (MIB << 20))
        return torch.randn(ROWS, WIDTH)


def lists_in_workers() -> None:
    """A list that grows in each loader worker: pytorch/pytorch#13246."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    for rows in torch.utils.data.DataLoader(Listed(), batch_size=None, num_workers=2):
        net(rows.to(DEVICE)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def steady() -> None:
    for _ in trained(model()):
        pass


def varying() -> None:
    """Batches of varying length, the last outputs of which are held until the next ones."""
    generator = torch.Generator().manual_seed(1)
    held: Any = None
    for _, outputs, _ in trained(model(), lambda step: int(torch.randint(16, 4 * ROWS, (1,), generator=generator))):
        held = outputs
    del held


def warming() -> None:
    """The first steps take more each time."""
    workspaces = []
    for step, _, _ in trained(model()):
        if step < 4:
            workspaces.append(batch())


def evaluating() -> None:
    net = model()
    for step, _, _ in trained(net):
        if step % 20 == 0:
            with torch.no_grad():
                results = [net(batch()) for _ in range(10)]
            del results


def checkpointing() -> None:
    net = model()
    for step, _, _ in trained(net):
        if step % 25 == 0:
            copy = {name: value.cpu().clone() for name, value in net.state_dict().items()}
            del copy


def curriculum() -> None:
    """Sequences that get longer; the last outputs are held."""
    held: Any = None
    for _, outputs, _ in trained(model(), lambda step: 16 + 4 * step):
        held = outputs
    del held


def cache_bounded() -> None:
    """A cache of the last sixteen batches."""
    cache: dict[int, torch.Tensor] = {}
    for step, outputs, _ in trained(model()):
        cache[step % 16] = outputs.detach().clone()


def two_models() -> None:
    """A generator and a critic in turns."""
    for _ in zip(trained(model()), trained(model()), strict=False):
        pass


def accumulating() -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(STEPS // 2):
        for _ in range(4):
            net(batch(ROWS // 4)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def averaging() -> None:
    """From the middle on, averaged weights."""
    net, averaged = model(), None
    for step, _, _ in trained(net):
        if step == STEPS // 2:
            averaged = torch.optim.swa_utils.AveragedModel(net)
        elif averaged is not None:
            averaged.update_parameters(net)


def epochs_dropped() -> None:
    """Every epoch's losses are collected, and dropped at its end."""
    collected: list[torch.Tensor] = []
    for step, _, loss in trained(model()):
        if step % 30 == 0:
            collected.clear()
        collected.append(loss.detach())


def logged_rightly() -> None:
    total, losses = 0.0, []
    for _, _, loss in trained(model()):
        total += loss.item()
        losses.append(total)


def graphed() -> None:
    """Forward and backward replayed from CUDA graphs, whose memory is a separate pool."""
    net: Any = model()
    if DEVICE != "cpu":
        net = torch.cuda.make_graphed_callables(net, (batch(),))
    for _ in trained(net):
        pass


LEAKS = (
    *(loss_summed, outputs_kept, hidden_carried, metric_collects, cache_unbounded, hooks_added),
    *(replay_on_card, gradients_kept, loss_with_state, tracebacks_held, cycles_uncollected, losses_logged),
    lists_in_workers,
)
HARMLESS = (
    *(steady, varying, warming, evaluating, checkpointing, curriculum),
    *(cache_bounded, two_models, accumulating, averaging, epochs_dropped, logged_rightly, graphed),
)
PROGRAMS = {program.__name__: program for program in (*LEAKS, *HARMLESS)}

if __name__ == "__main__":
    STEPS, DEVICE = int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    PROGRAMS[sys.argv[1]]()
