"""More that people run on one card of 16 GiB, for ``record_slices.py``.

    python -m tests.traces.card_programs NAME

As in ``library_programs.py``, whose limits and whose way of starting these have. Written on 2026-11-28 and recorded
before any rule was made that is judged by their recordings. Half of them end well.
"""

from __future__ import annotations

import copy
import itertools
import math
import time

import torch
from torch import nn

from tests.traces.library_programs import CARD_BYTES, DEVICE, PROGRAMS, encoder, main, now, program, rng, train

__all__ = ["PROGRAMS"]


def share(of):
    """Return the number of float32 that take a share of the card."""
    return int(of * CARD_BYTES / 4)


def linear(width, depth):
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth))).to(DEVICE)


# One server, many adapters.


def _adapters(most):
    base, loaded = linear(4096, 24), {}
    with torch.no_grad():
        while True:
            tenant = rng.randrange(400)
            rank = rng.choice((512, 1024, 2048))
            if tenant not in loaded:
                loaded[tenant] = [(torch.randn(4096, rank, device=DEVICE), rank) for _ in range(24)]
            while len(loaded) > most:
                loaded.pop(next(iter(loaded)))
            base(torch.randn(256, 4096, device=DEVICE))
            time.sleep(rng.expovariate(1 / 1.6))


@program
def adapters_oom():
    """Each tenant's adapter is loaded at its first request and never unloaded."""
    _adapters(1 << 30)


@program
def adapters_lru():
    """The same, with the 18 used last."""
    _adapters(18)


# A model asked for one long answer: transformers' own cache.


def _generates(batch, steps):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=1024, n_layer=24, n_head=16, n_positions=8192, vocab_size=32000)
    model = GPT2LMHeadModel(config).to(DEVICE).half().eval()
    with torch.no_grad():
        while True:
            past, token = None, torch.zeros(batch, 1, dtype=torch.long, device=DEVICE)
            for _ in range(steps):
                out = model(token, past_key_values=past, use_cache=True)
                past, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
                time.sleep(0.01)
            del past, out
            torch.cuda.empty_cache()


@program
def long_answer():
    """64 answers at once without an end of their own."""
    _generates(64, 8000)


@program
def short_answers():
    """128 answers of 600 tokens, over and over."""
    _generates(128, 600)


# What an epoch leaves.


@program
def metric_states_oom():
    """A metric of torchmetrics keeps predictions and targets of a curve until ``reset``, which nobody calls."""
    from torchmetrics.classification import MulticlassAUROC

    metric, net = MulticlassAUROC(num_classes=2000).to(DEVICE), encoder(depth=4)
    optimizer = torch.optim.AdamW(net.parameters())
    while True:
        train(net, optimizer, torch.randn(16, 256, 768, device=DEVICE))
        metric.update(torch.randn(8192, 2000, device=DEVICE), torch.randint(2000, (8192,), device=DEVICE))
        time.sleep(0.35)


@program
def metric_states_reset():
    """The same with a ``reset`` every twenty seconds."""
    from torchmetrics.classification import MulticlassAUROC

    metric, net = MulticlassAUROC(num_classes=2000).to(DEVICE), encoder(depth=4)
    optimizer, due = torch.optim.AdamW(net.parameters()), 20.0
    while True:
        train(net, optimizer, torch.randn(16, 256, 768, device=DEVICE))
        metric.update(torch.randn(8192, 2000, device=DEVICE), torch.randint(2000, (8192,), device=DEVICE))
        if now() > due:
            metric.reset()
            torch.cuda.empty_cache()
            due += rng.uniform(14, 22)
        time.sleep(0.2)


@program
def teacher_logits_oom():
    """Distillation that caches a teacher's answers for the second epoch."""
    teacher, student, kept = encoder(depth=6).half().eval(), encoder(depth=2), []
    optimizer, head = torch.optim.AdamW(student.parameters()), nn.Linear(768, 30000).to(DEVICE).half()
    while True:
        data = torch.randn(8, 128, 768, device=DEVICE)
        with torch.no_grad():
            kept.append(head(teacher(data.half())))
        train(student, optimizer, data)
        time.sleep(rng.uniform(0.2, 0.5))


# A data set on the card.


def _dataset_cached(of, seconds):
    net, kept = encoder(depth=4), []
    optimizer, each = torch.optim.AdamW(net.parameters()), share(of / 120)
    for _ in range(120):
        kept.append(torch.randn(each, device=DEVICE))
        train(net, optimizer, torch.randn(16, 256, 768, device=DEVICE))
        time.sleep(seconds / 120)
    while True:
        (kept[rng.randrange(len(kept))][: 1 << 22] * 2).sum().item()
        train(net, optimizer, torch.randn(16, 256, 768, device=DEVICE))
        time.sleep(0.2)


@program
def dataset_cached_oom():
    """The first epoch puts each batch on the card and leaves it there; there is more than fits."""
    _dataset_cached(1.4, 120)


@program
def dataset_cached():
    """The same with a data set of 62 % of the card, done within 70 s."""
    _dataset_cached(0.62, 70)


@program
def corpus_encoded_oom():
    """Encodes a corpus and keeps the vectors on the card until the file is written at the end."""
    net, kept = encoder(depth=8).half().eval(), []
    with torch.no_grad():
        while True:
            kept.append(net(torch.randn(32, rng.randint(64, 512), 768, device=DEVICE, dtype=torch.half)))
            kept[-1] = kept[-1].repeat(1, 1, 12)
            time.sleep(0.7)


@program
def corpus_encoded():
    """The same with a corpus that ends at two thirds of the card, then a search over it."""
    net, kept, size = encoder(depth=8).half().eval(), [], 0
    with torch.no_grad():
        while size < 0.6 * CARD_BYTES:
            kept.append(net(torch.randn(32, rng.randint(64, 512), 768, device=DEVICE, dtype=torch.half)))
            kept[-1] = kept[-1].repeat(1, 1, 12)
            size += kept[-1].nbytes
            time.sleep(0.7)
        while True:
            (kept[rng.randrange(len(kept))] * 2).sum().item()
            time.sleep(0.3)


# Weights kept for averaging.


def _averaged(kept_at_most):
    net, kept = linear(4096, 12), []
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    while True:
        end = now() + rng.uniform(5, 8)
        while now() < end:
            train(net, optimizer, torch.randn(4096, 4096, device=DEVICE))
            time.sleep(0.1)
        kept.append(copy.deepcopy(net.state_dict()))
        del kept[:-kept_at_most]


@program
def snapshots_oom():
    """A copy of the weights after each epoch, for a mean at the end."""
    _averaged(1000)


@program
def snapshots_last_eight():
    """The same with the last eight."""
    _averaged(8)


# A search for the largest batch.


def _batch_finder(top):
    net = encoder()
    optimizer, batch = torch.optim.AdamW(net.parameters()), 2
    while batch <= top:
        for _ in range(12):
            train(net, optimizer, torch.randn(batch, 512, 768, device=DEVICE))
            time.sleep(0.5)
        batch *= 2
        torch.cuda.empty_cache()
    while True:
        train(net, optimizer, torch.randn(batch // 2, 512, 768, device=DEVICE))
        time.sleep(0.2)


@program
def batch_finder_oom():
    """Lightning's finder: twice the batch each few seconds, until it does not fit."""
    _batch_finder(1 << 20)


@program
def batch_finder_stops():
    """The same, told to stop at 32."""
    _batch_finder(32)


# Recorded graphs, as a server makes one for each size of batch.


def _graphs(sizes, width):
    net, kept = linear(width, 8).half(), []
    with torch.no_grad():
        for size in sizes:
            data = torch.randn(size, width, device=DEVICE, dtype=torch.half)
            net(data)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = net(data)
            kept.append((graph, data, out))
            time.sleep(1.2)
        while True:
            kept[rng.randrange(len(kept))][0].replay()
            time.sleep(0.2)


@program
def graphs_captured_oom():
    """A graph for each size up to a number that nobody has thought about; each has a pool of its own."""
    _graphs(range(512, 1 << 20, 256), 4096)


@program
def graphs_captured():
    """The same for forty sizes."""
    _graphs(range(384, 384 * 41, 384), 4096)


# Sequences sorted by length, with memory that goes with the square.


@program
def folding_sorted_oom():
    """Proteins sorted by length: a pair representation and its gradient for each."""
    length = 300.0
    mix = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)).to(DEVICE)
    optimizer = torch.optim.Adam(mix.parameters())
    while True:
        train(mix, optimizer, torch.randn(int(length), int(length), 128, device=DEVICE))
        length *= 1.008
        time.sleep(0.45)


@program
def folding_shuffled():
    """The same proteins in any order."""
    mix = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)).to(DEVICE)
    optimizer = torch.optim.Adam(mix.parameters())
    while True:
        length = int(min(1100, rng.lognormvariate(5.9, 0.4)))
        train(mix, optimizer, torch.randn(length, length, 128, device=DEVICE))
        time.sleep(0.4)


@program
def attention_maps_oom():
    """Keeps the attention of each answer for a picture of it; answers become longer."""
    kept, length = [], 256
    while True:
        scores = torch.randn(16, length, length, device=DEVICE).softmax(-1)
        kept.append(scores)
        length += 24
        time.sleep(1.0)


@program
def attention_maps_last():
    """The same for the last three, up to a length of 4096."""
    kept, length = [], 256
    while True:
        kept = [*kept, torch.randn(16, length, length, device=DEVICE).softmax(-1)][-3:]
        length = min(4096, length + 48)
        time.sleep(0.9)


# Pipelines.


@program
def batches_ahead_oom():
    """A thread puts batches on the card faster than the training takes them, without a bound."""
    net, ahead = encoder(), []
    optimizer = torch.optim.AdamW(net.parameters())
    for step in itertools.count():
        ahead.extend(torch.randn(24, 512, 768, device=DEVICE) for _ in range(1 + 2 * (step % 5 < 3)))
        train(net, optimizer, ahead.pop(0))
        time.sleep(0.35)


@program
def batches_ahead():
    """The same with at most two hundred."""
    net, ahead = encoder(), []
    optimizer = torch.optim.AdamW(net.parameters())
    while True:
        while len(ahead) < 200 and rng.random() < 0.85:
            ahead.append(torch.randn(12, 512, 768, device=DEVICE))
        if ahead:
            train(net, optimizer, ahead.pop(0))
        time.sleep(0.15)


@program
def hook_features_oom():
    """A forward hook keeps what each layer gives, for a plot of the epoch."""
    net, kept = encoder(depth=12), []
    for layer in net.layers:
        layer.register_forward_hook(lambda _module, _given, out: kept.append(out.detach().half()))
    optimizer = torch.optim.AdamW(net.parameters())
    while True:
        train(net, optimizer, torch.randn(rng.randint(8, 24), 256, 768, device=DEVICE))
        time.sleep(0.3)


@program
def imagination_oom():
    """A world model whose horizon grows by one step every few updates; each update gives all back."""
    cell, horizon = nn.GRUCell(2048, 2048).to(DEVICE), 4.0
    optimizer = torch.optim.Adam(cell.parameters())
    while True:
        state = torch.zeros(16384, 2048, device=DEVICE)
        for _ in range(int(horizon)):
            state = cell(state.tanh(), state)
        train(lambda out: out, optimizer, state)
        del state
        torch.cuda.empty_cache()
        horizon += 0.06
        time.sleep(0.35)


@program
def imagination_far_oom():
    """The same with horizons of 1 to 12, of which the longest does not fit."""
    cell = nn.GRUCell(2048, 2048).to(DEVICE)
    optimizer = torch.optim.Adam(cell.parameters())
    while True:
        state = torch.zeros(16384, 2048, device=DEVICE)
        for _ in range(rng.randint(1, 12)):
            state = cell(state.tanh(), state)
        train(lambda out: out, optimizer, state)
        del state
        torch.cuda.empty_cache()
        time.sleep(0.35)


@program
def scattered():
    """Blocks of all sizes come and go; what lies between them cannot be used, and the pool grows."""
    kept, size, most = [], 0, 0.62 * CARD_BYTES
    while True:
        kept.append(torch.empty(int(2 ** rng.uniform(20, 28)), dtype=torch.uint8, device=DEVICE))
        size += kept[-1].nbytes
        limit = most * (1 - math.exp(-now() / 25)) * (1 + now() / 400)
        while size > limit and kept:
            size -= kept.pop(rng.randrange(len(kept))).nbytes
        time.sleep(0.03)


@program
def experts_oom():
    """Adds an expert with Adam's state each time that the loss stands still."""
    experts = nn.ModuleList([linear(4096, 4)])
    optimizer, due = torch.optim.AdamW(experts.parameters()), 6.0
    while True:
        train(lambda data: sum(expert(data) for expert in experts), optimizer, torch.randn(512, 4096, device=DEVICE))
        if now() > due:
            experts.append(linear(4096, 4))
            optimizer.add_param_group({"params": experts[-1].parameters()})
            due += rng.uniform(5, 9)
        time.sleep(0.15)


@program
def adversaries():
    """Two networks train in turn, one on batches twice as large."""
    one, other = encoder(depth=10), encoder(depth=5)
    optimizers = [torch.optim.AdamW(net.parameters()) for net in (one, other)]
    while True:
        for _ in range(5):
            train(one, optimizers[0], torch.randn(24, 512, 768, device=DEVICE))
            time.sleep(0.15)
        torch.cuda.empty_cache()
        for _ in range(5):
            train(other, optimizers[1], torch.randn(64, 512, 768, device=DEVICE))
            time.sleep(0.15)


@program
def models_on_demand():
    """A desk's models: each is loaded when asked for, and unloaded after half a minute without a question."""
    loaded = {}
    while True:
        name = rng.randrange(5)
        loaded[name] = (now(), loaded[name][1] if name in loaded else torch.zeros(share(0.13), device=DEVICE))
        if stale := [key for key, (used, _) in loaded.items() if now() - used > 14]:
            for key in stale:
                del loaded[key]
            torch.cuda.empty_cache()
        time.sleep(rng.uniform(1, 7))


if __name__ == "__main__":
    main()
