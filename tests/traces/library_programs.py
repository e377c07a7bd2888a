"""What people run on one card, made of the libraries they use; for ``record_slices.py``.

    python library_programs.py NAME

Each may have so much VRAM as a card of 16 GiB leaves it, by the limit of its own allocator (PyTorch's, CuPy's
or JAX's). It prints ``ready`` once its libraries are loaded, begins at a line on its standard input, and prints
``failed`` with the time of the monotonic clock when its library says that memory is out. Written in November
2026, before any rule was made that is judged by their recordings; none of them is an older program in new words.
"""

from __future__ import annotations

import os
import random
import sys
import time

CARD_BYTES = 16 << 30
#: what CUDA itself takes of the card before a library gets anything
CONTEXT_BYTES = 560 << 20
NAME = sys.argv[1] if len(sys.argv) > 1 else ""
DEVICE = "cuda"
rng = random.Random(NAME)

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

import torch
from torch import nn

began = time.monotonic()
PROGRAMS = {}


def program(run):
    """Let a function be run by its name."""
    PROGRAMS[run.__name__] = run
    return run


def now():
    return time.monotonic() - began


def train(net, optimizer, data, loss=lambda out: out.float().square().mean()):
    loss(net(data)).backward()
    optimizer.step()
    optimizer.zero_grad()


def encoder(width=768, depth=8):
    layer = nn.TransformerEncoderLayer(width, 12, 4 * width, batch_first=True)
    return nn.TransformerEncoder(layer, depth).to(DEVICE)


# Speech: files of very different length; what a batch takes goes with its longest.


def _speech():
    from torchaudio.models import Conformer

    net = Conformer(input_dim=80, num_heads=4, ffn_dim=1024, num_layers=12, depthwise_conv_kernel_size=31).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters())

    def step(batch, frames):
        lengths = torch.full((batch,), frames, device=DEVICE)
        train(lambda data: net(data, lengths)[0], optimizer, torch.randn(batch, frames, 80, device=DEVICE))

    return step


@program
def speech_sorted_oom():
    """Files sorted by length, the longest last, as many toolkits do for their first epoch."""
    step, frames = _speech(), 400.0
    while True:
        for _ in range(4):
            step(16, int(frames))
            time.sleep(0.25)
        frames *= 1.025


@program
def speech_shuffled():
    """The same files shuffled, with a longest."""
    step = _speech()
    while True:
        step(16, int(min(1500, rng.lognormvariate(6.3, 0.5))))
        time.sleep(0.2)


# Graphs.


@program
def graph_history_oom():
    """A recurrent network over snapshots of a graph, never cut off from its past."""
    from torch_geometric.nn import GCNConv

    nodes, width = 20_000, 128
    conv, cell = GCNConv(width, width).to(DEVICE), nn.GRUCell(width, width).to(DEVICE)
    state = torch.zeros(nodes, width, device=DEVICE)
    while True:
        edges = torch.randint(nodes, (2, 150_000), device=DEVICE)
        state = cell(conv(torch.randn(nodes, width, device=DEVICE), edges).relu(), state)
        time.sleep(rng.uniform(0.6, 1.6))


@program
def graph_sampled():
    """Neighbours sampled anew for each batch: subgraphs of all sizes."""
    from torch_geometric.nn import SAGEConv

    first, second = SAGEConv(256, 512).to(DEVICE), SAGEConv(512, 512).to(DEVICE)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()])
    while True:
        nodes = rng.randint(30_000, 200_000)
        edges = torch.randint(nodes, (2, 5 * nodes), device=DEVICE)
        data = torch.randn(nodes, 256, device=DEVICE)
        train(lambda x, edges=edges: second(first(x, edges).relu(), edges), optimizer, data)
        time.sleep(0.3)


# Reinforcement learning: what was seen is kept.


def _replay(capacity_bytes):
    net = nn.Sequential(nn.Conv2d(4, 64, 8, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(18)).to(DEVICE)
    net(torch.zeros(1, 4, 84, 84, device=DEVICE))
    optimizer, kept, size = torch.optim.Adam(net.parameters()), [], 0
    while True:
        episode = torch.randint(256, (rng.randint(1000, 8000), 4, 84, 84), dtype=torch.uint8, device=DEVICE)
        kept.append(episode)
        size += episode.nbytes
        while size > capacity_bytes:
            size -= kept.pop(0).nbytes
        for _ in range(4):
            train(net, optimizer, kept[rng.randrange(len(kept))][:256].float() / 255)
        time.sleep(rng.uniform(0.3, 0.8))


@program
def replay_oom():
    """Its capacity was counted in episodes, for shorter ones."""
    _replay(1 << 50)


@program
def replay_bounded():
    """Fills to three fifths of the card, then forgets the oldest."""
    _replay(int(0.6 * CARD_BYTES))


# Video.


def _frames(count):
    return torch.rand(count, 3, 720, 1280, device=DEVICE)


@program
def video_clip_oom():
    """Denoises a film in time: each second of it is kept until the film ends."""
    blur, kept = nn.Conv2d(3, 3, 9, padding=4).to(DEVICE), []
    with torch.no_grad():
        while True:
            kept.append(blur(_frames(24)))
            time.sleep(1.6)


@program
def video_window():
    """The same with a window of the last seconds, and a scene change that empties it."""
    blur, kept = nn.Conv2d(3, 3, 9, padding=4).to(DEVICE), []
    with torch.no_grad():
        while True:
            kept.append(blur(_frames(24)))
            kept = [] if rng.random() < 0.08 else kept[-22:]
            if not kept:
                torch.cuda.empty_cache()
            time.sleep(0.7)


# A search for good settings.


def _trial(keep):
    width = rng.choice((1024, 1536, 2048, 3072))
    net = nn.Sequential(*(nn.Linear(width, width) for _ in range(rng.randint(8, 16)))).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(rng.randint(10, 30)):
        train(net, optimizer, torch.randn(rng.choice((512, 2048, 8192)), width, device=DEVICE))
        time.sleep(0.15)
    keep.append((net, optimizer))


@program
def search_kept_oom():
    """Keeps each trial's model and optimizer, to look at the best one later."""
    kept = []
    while True:
        _trial(kept)


@program
def search_freed():
    """Keeps nothing: every trial takes something else, and gives it back."""
    while True:
        _trial([])
        torch.cuda.empty_cache()


# Retrieval.


@program
def index_lists_oom():
    """An inverted index on the card: each of its lists takes half as much again when it is full."""
    lists, used = [torch.zeros(2048, 256, device=DEVICE) for _ in range(256)], [0] * 256
    while True:
        for number, wanted in enumerate(
            torch.multinomial(torch.rand(256), 100_000, replacement=True).bincount(minlength=256)
        ):
            used[number] += int(wanted)
            if used[number] > len(lists[number]):
                lists[number] = torch.cat([lists[number], lists[number].new_zeros(used[number] // 2, 256)])
        time.sleep(rng.uniform(0.4, 0.9))


@program
def index_built():
    """k-means, then a built index that answers."""
    vectors = torch.randn(6_000_000, 256, device=DEVICE)
    centres = vectors[:1024].clone()
    for _ in range(5):
        for part in vectors.split(400_000):
            torch.cdist(part, centres).argmin(1)
        time.sleep(1)
    while True:
        (torch.randn(32, 256, device=DEVICE) @ vectors.T).topk(10)
        time.sleep(0.2)


# Simulation, with CuPy and JAX.


def _cupy():
    import cupy

    cupy.get_default_memory_pool().set_limit(CARD_BYTES - CONTEXT_BYTES)
    return cupy


@program
def lattice_refined_oom():
    """A wave on a grid that is refined where it is steep; the snapshots for the film stay on the card."""
    cupy = _cupy()
    side, film = 1500, []
    while True:
        grid = cupy.random.random((side, side), dtype=cupy.float32)
        for _ in range(20):
            grid += 0.1 * (cupy.roll(grid, 1, 0) + cupy.roll(grid, -1, 0) - 2 * grid)
        film.append(grid)
        side += 90
        time.sleep(0.9)


@program
def spectra():
    """Fourier transforms of volumes of a few sizes; the pool keeps what the largest took."""
    cupy = _cupy()
    while True:
        side = rng.choice((256, 320, 384, 448, 512))
        cupy.abs(cupy.fft.fftn(cupy.random.random((side,) * 3, dtype=cupy.float32))).sum().item()
        time.sleep(0.6)


@program
def trajectories_oom():
    """Integrates ensembles of a chaotic system and keeps each trajectory for a plot."""
    import jax
    import jax.numpy as jnp

    def lorenz(state, _):
        x, y, z = state
        step = jnp.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])
        return state + 0.001 * step, state

    run = jax.jit(lambda start: jax.lax.scan(lorenz, start, None, length=2000)[1])
    kept = []
    while True:
        kept.append(
            run(jax.random.normal(jax.random.key(len(kept)), (3, rng.randint(4_000, 16_000)))).block_until_ready()
        )
        time.sleep(rng.uniform(0.5, 2.0))


# Pictures.


def _unet():
    from torchvision.models.segmentation import fcn_resnet50

    return fcn_resnet50(weights=None, weights_backbone=None, num_classes=3).to(DEVICE).eval()


@program
def pictures_larger_oom():
    """A picture service whose users ask for ever larger ones."""
    net, side = _unet(), 768.0
    with torch.no_grad():
        while True:
            size = int(side * rng.uniform(0.7, 1.0)) // 32 * 32
            net(torch.rand(4, 3, size, size, device=DEVICE))
            side *= 1.012
            time.sleep(0.7)


@program
def pictures_served():
    """The same with four sizes, the first of them seldom."""
    net = _unet()
    with torch.no_grad():
        while True:
            size = rng.choices((1536, 1024, 768, 512), (1, 8, 8, 8))[0]
            net(torch.rand(4, 3, size, size, device=DEVICE))
            time.sleep(0.5)


@program
def progressive_oom():
    """A generator whose pictures double their side every 18 s."""
    side, batch = 64, 24
    while True:
        blocks = [nn.Sequential(nn.Conv2d(96, 96, 3, padding=1), nn.ReLU()) for _ in range(6)]
        net = nn.Sequential(nn.Conv2d(3, 96, 1), *blocks, nn.Conv2d(96, 3, 1)).to(DEVICE)
        optimizer = torch.optim.Adam(net.parameters())
        end = now() + 18
        while now() < end:
            train(net, optimizer, torch.randn(batch, 3, side, side, device=DEVICE))
            time.sleep(0.2)
        side *= 2


@program
def resizing():
    """Training at growing resolutions, as timm's recipes do, up to one that fits."""
    import timm

    net = timm.create_model("resnet50", num_classes=100).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for side in (128, 160, 192, 224, 224, 224, 224, 224):
        end = now() + 20
        while now() < end:
            train(net, optimizer, torch.randn(64, 3, side, side, device=DEVICE))
            time.sleep(0.15)


# Language.


@program
def conversations_oom():
    """A chat server that never forgets a conversation: keys and values of each grow with each answer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    net = GPT2LMHeadModel(GPT2Config(n_layer=24, n_head=16, n_embd=1024, n_positions=8192)).to(DEVICE).half().eval()
    chats = []
    with torch.no_grad():
        while True:
            if not chats or rng.random() < 0.35:
                chats.append(None)
            number = rng.randrange(len(chats))
            prompt = torch.randint(50_000, (1, rng.randint(100, 700)), device=DEVICE)
            before = chats[number].get_seq_length() if chats[number] is not None else 0
            if before + prompt.shape[1] >= 8000:
                continue
            chats[number] = net(prompt, past_key_values=chats[number], use_cache=True).past_key_values
            time.sleep(rng.uniform(0.05, 0.25))


@program
def paged_cache():
    """A server that takes blocks for keys and values as it needs them, up to four fifths of the card."""
    weights, blocks = torch.zeros(3 << 30, dtype=torch.uint8, device=DEVICE), []
    while True:
        needed = 40 + int(110 * min(1.0, now() / 90)) + rng.randint(-10, 4)
        while len(blocks) < needed and torch.cuda.memory_reserved() < 0.8 * CARD_BYTES:
            blocks.append(torch.zeros(64 << 20, dtype=torch.uint8, device=DEVICE))
        (torch.randn(512, 1024, device=DEVICE) @ weights[: 4 << 20].view(torch.float32).view(1024, 1024)).sum().item()
        time.sleep(0.3)


@program
def curriculum():
    """Fine-tunes with adapters on texts a tenth longer in each short epoch."""
    net, length = encoder(), 256.0
    net.requires_grad_(requires_grad=False)
    adapter = nn.Linear(768, 768).to(DEVICE)
    optimizer = torch.optim.AdamW(adapter.parameters())
    while True:
        for _ in range(12):
            train(lambda x: net(adapter(x)), optimizer, torch.randn(8, int(length), 768, device=DEVICE))
            time.sleep(0.3)
        length *= 1.1


@program
def total_loss_oom():
    """``total += loss`` without ``item()``: every step's graph stays."""
    net, total = encoder(depth=4), torch.zeros((), device=DEVICE)
    while True:
        total = total + net(torch.randn(2, 256, 768, device=DEVICE)).square().mean()
        time.sleep(rng.uniform(0.3, 0.7))


# Statistics and recommendations.


@program
def gaussian_process_oom():
    """Bayesian optimization with an exact Gaussian process: its matrix grows with the square of the points."""
    import gpytorch

    class Exact(gpytorch.models.ExactGP):
        def __init__(self, x, y, likelihood):
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    points = 2000
    while True:
        x = torch.rand(points, 8, device=DEVICE)
        likelihood = gpytorch.likelihoods.GaussianLikelihood().to(DEVICE)
        model = Exact(x, x.sum(1), likelihood).to(DEVICE).train()
        likelihood.train()
        loss = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        with gpytorch.settings.fast_computations(covar_root_decomposition=False, log_prob=False, solves=False):
            (-loss(model(x), x.sum(1))).backward()
        points += 400
        time.sleep(1.2)


@program
def vocabulary_oom():
    """A recommender that gives new items rows in its table, a quarter more at a time, with Adam's two copies."""
    rows = 400_000
    table = nn.Embedding(rows, 128, device=DEVICE)
    while True:
        optimizer = torch.optim.Adam(table.parameters())
        for _ in range(rng.randint(10, 24)):
            train(table, optimizer, torch.randint(rows, (4096,), device=DEVICE))
            time.sleep(0.3)
        rows = rows * 5 // 4
        larger = nn.Embedding(rows, 128, device=DEVICE)
        larger.weight.data[: len(table.weight)] = table.weight.data
        table = larger


# Scenes.


def _splats(until):
    points, width = 300_000, 59
    scene = torch.randn(points, width, device=DEVICE, requires_grad=True)
    while True:
        optimizer = torch.optim.Adam([scene])
        for _ in range(12):
            order = scene[:, 2].argsort()
            train(lambda x, order=order: (x[order, :3] @ x[order, 3:6].T[:, :64]).sigmoid(), optimizer, scene)
            time.sleep(0.15)
        if now() < until:
            grown = torch.cat([scene.data, scene.data[: len(scene) * 3 // 20] + 0.01])
            del optimizer, scene
            scene = grown.requires_grad_()


@program
def splats_oom():
    """A scene of Gaussians that is densified by 15 % every few seconds."""
    _splats(1e9)


@program
def splats_that_stop():
    """The same; densification stops where the recipe says, with room to spare."""
    _splats(36)


# Several models in one process.


def _models(most):
    kept = []
    while len(kept) < most:
        size = int(rng.uniform(0.13, 0.2) * CARD_BYTES / 4)
        kept.append(torch.zeros(size, device=DEVICE))
        kept[-1].normal_()
        time.sleep(rng.uniform(2.5, 9.0))
    while True:
        (kept[rng.randrange(len(kept))][: 1 << 24] * 2).sum().item()
        time.sleep(0.2)


@program
def ensemble_oom():
    """Loads one model after another, until one does not fit."""
    time.sleep(20)
    _models(99)


@program
def ensemble_fits():
    """Loads four, and answers."""
    time.sleep(20)
    _models(4)


@program
def evaluates_larger():
    """Trains, and evaluates every 20 s with batches three times as large and no gradients."""
    net = encoder()
    optimizer = torch.optim.AdamW(net.parameters())
    while True:
        end = now() + 20
        while now() < end:
            train(net, optimizer, torch.randn(24, 512, 768, device=DEVICE))
            time.sleep(0.1)
        with torch.no_grad():
            for _ in range(10):
                net(torch.randn(96, 1024, 768, device=DEVICE))
                time.sleep(0.1)


def main():
    global began
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    total = torch.cuda.get_device_properties(0).total_memory
    share = (CARD_BYTES - CONTEXT_BYTES) / total
    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = str(share)
    torch.cuda.set_per_process_memory_fraction(share)
    try:
        PROGRAMS[NAME]()
    except Exception as error:  # each library has its own
        if "memory" not in f"{type(error).__name__} {error}".lower():
            raise
        print("failed", time.monotonic(), flush=True)


if __name__ == "__main__":
    main()
