"""How fast torch and small kernels of our own go over memory on this card: one table, GB/s.

    python -m tests.gpu.passes [--seconds 45] [--json FILE] [--small]

Each candidate works on chunks that lie apart, one kernel right after the other; ``chunk`` is the median of
single kernels by events, ``queue`` all of them by the time from first to last.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

say = functools.partial(print, flush=True)
MIB = 1 << 20
PEAKS = {"NVIDIA H200": 4.8e12, "NVIDIA H100 80GB HBM3": 3.35e12}
ROUNDS = 3

SOURCE = """
typedef unsigned long long word;
extern "C" __global__ void constant(const ulonglong2* x, const word* expected, word* wrong, int pairs) {
    const word want = *expected;
    const int step = gridDim.x * blockDim.x;
    word bad = 0;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + (UNROLL - 1) * step < pairs; i += UNROLL * step) {
        ulonglong2 v[UNROLL];
        #pragma unroll
        for (int u = 0; u < UNROLL; u++) v[u] = __ldcs(x + i + u * step);
        #pragma unroll
        for (int u = 0; u < UNROLL; u++) bad |= (v[u].x ^ want) | (v[u].y ^ want);
    }
    for (; i < pairs; i += step) bad |= (x[i].x ^ want) | (x[i].y ^ want);
    if (bad) atomicOr(wrong, bad);
}
extern "C" __global__ void write_address(ulonglong2* x, const word* seed, int pairs) {
    const int step = gridDim.x * blockDim.x;
    const word odd = *seed | 1;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < pairs; i += step)
        x[i] = make_ulonglong2(odd * (2 * (word)i + 1), odd * (2 * (word)i + 2));
}
extern "C" __global__ void check_address(const ulonglong2* x, const word* seed, word* wrong, int pairs) {
    const int step = gridDim.x * blockDim.x;
    const word odd = *seed | 1;
    word bad = 0;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + (UNROLL - 1) * step < pairs; i += UNROLL * step) {
        ulonglong2 v[UNROLL];
        #pragma unroll
        for (int u = 0; u < UNROLL; u++) v[u] = __ldcs(x + i + u * step);
        #pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            word at = 2 * (word)(i + u * step);
            bad |= (v[u].x ^ odd * (at + 1)) | (v[u].y ^ odd * (at + 2));
        }
    }
    for (; i < pairs; i += step)
        bad |= (x[i].x ^ odd * (2 * (word)i + 1)) | (x[i].y ^ odd * (2 * (word)i + 2));
    if (bad) atomicOr(wrong, bad);
}
"""


class Card:
    """Chunks to work on, and clocks."""

    def __init__(self, size: int, total: int, device: str) -> None:
        self.device = torch.device(device)
        self.size = size
        self.chunks = [torch.zeros(size // 8, dtype=torch.int64, device=device) for _ in range(total // size)]
        self.low = {}

    def settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def time(self, work) -> tuple[float, float]:
        """Return the median seconds of a kernel, and the seconds a kernel that a queue of them takes."""
        for x in self.chunks[:2]:
            work(x)
        self.settle()
        if self.device.type != "cuda":
            start = time.perf_counter()
            for x in self.chunks:
                work(x)
            each = (time.perf_counter() - start) / len(self.chunks)
            return each, each
        single, whole = [], []
        for _ in range(ROUNDS):
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(self.chunks) + 1)]
            marks[0].record()
            for x, mark in zip(self.chunks, marks[1:], strict=True):
                work(x)
                mark.record()
            self.settle()
            single += [a.elapsed_time(b) / 1000 for a, b in itertools.pairwise(marks[1:])]
            ends = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            ends[0].record()
            for x in self.chunks:
                work(x)
            ends[1].record()
            self.settle()
            whole.append(ends[0].elapsed_time(ends[1]) / 1000 / len(self.chunks))
        return statistics.median(single), min(whole)

    def out(self, shape, dtype):
        key = (shape, dtype)
        if key not in self.low:
            self.low[key] = (
                torch.empty(shape, dtype=dtype, device=self.device),
                torch.empty(shape, dtype=dtype, device=self.device),
            )
        return self.low[key]


def reads(card):
    """Yield (name, work, exact): what reads a chunk once; exact ones prove that all words are alike."""

    def both(dtype, lanes, side):
        def work(x):
            words = x.view(dtype)
            if side is None:
                torch.aminmax(words, out=card.out((), dtype))
            else:
                shape = words.view(-1, lanes) if side == 0 else words.view(lanes, -1)
                torch.aminmax(shape, dim=side, out=card.out((lanes,), dtype))

        return work

    def one(dtype, lanes, side, op=torch.amax):
        def work(x):
            words = x.view(dtype)
            if side is None:
                op(words)
            else:
                op(words.view(-1, lanes) if side == 0 else words.view(lanes, -1), dim=side)

        return work

    short = {
        torch.int64: "int64",
        torch.int32: "int32",
        torch.int16: "int16",
        torch.uint8: "uint8",
        torch.float32: "float32",
        torch.float64: "float64",
        torch.bfloat16: "bfloat16",
    }
    for dtype in (torch.int64, torch.int32, torch.int16):
        yield f"aminmax {short[dtype]}", both(dtype, 0, None), True
    for dtype in (torch.int64, torch.int32):
        for lanes in (4096, 16384, 65536, 1024):
            yield f"aminmax {short[dtype]} along columns, {lanes}", both(dtype, lanes, 0), True
        for lanes in (4096, 16384, 1024):
            yield f"aminmax {short[dtype]} along rows, {lanes}", both(dtype, lanes, 1), True
    for dtype in (torch.int64, torch.int32, torch.uint8):
        yield f"any {short[dtype]} (zeros only)", lambda x, d=dtype: x.view(d).any(), True
    yield "all int64", lambda x: x.all(), False
    for dtype in (torch.int64, torch.int32, torch.float32, torch.float64, torch.bfloat16):
        yield f"amax {short[dtype]}", one(dtype, 0, None), False
    for dtype in (torch.int64, torch.int32, torch.float32):
        yield f"amax {short[dtype]} along columns, 4096", one(dtype, 4096, 0), False
        yield f"amax {short[dtype]} along rows, 4096", one(dtype, 4096, 1), False
    yield "sum int64", lambda x: x.sum(), False
    yield "sum int64 along columns, 4096", lambda x: x.view(-1, 4096).sum(0), False
    yield "sum float32", lambda x: x.view(torch.float32).sum(), False
    yield "count_nonzero int64", torch.count_nonzero, False


def writes(card):
    rows = torch.randint(1 << 60, (card.size // MIB, 1), device=card.device) | 1
    columns = torch.randint(1 << 60, (1, MIB // 8), device=card.device)
    for dtype in (torch.int64, torch.int32, torch.uint8):
        yield f"fill {dtype}".replace("torch.", ""), lambda x, d=dtype: x.view(d).fill_(85)
    yield "zero", lambda x: x.zero_()
    yield "address: rows * columns", lambda x: torch.mul(rows, columns, out=x.view(-1, MIB // 8))


def changes(card):
    rows = torch.randint(1 << 60, (card.size // MIB, 1), device=card.device) | 1
    columns = torch.randint(1 << 60, (1, MIB // 8), device=card.device)
    twenty = torch.randint(1 << 60, (20,), device=card.device)
    yield "bitwise_not int64", lambda x: x.bitwise_not_()
    yield "bitwise_not int32", lambda x: x.view(torch.int32).bitwise_not_()
    yield "xor constant", lambda x: x.bitwise_xor_(85)
    yield "address: addcmul", lambda x: x.view(-1, MIB // 8).addcmul_(rows, columns, value=-1)
    yield "modulo 20: xor row", lambda x: x[: x.numel() // 20 * 20].view(-1, 20).bitwise_xor_(twenty)


def twenties(card):
    def places(x, offset=7):
        x[: x.numel() // 20 * 20].view(-1, 20)[:, offset].fill_(1)

    def others(x, offset=7):
        whole = x[: x.numel() // 20 * 20].view(-1, 20)
        whole[:, :offset].fill_(2)
        whole[:, offset + 1 :].fill_(2)

    yield "modulo 20: every twentieth", places
    yield "modulo 20: all others", others


def compiled(card):
    """Yield kernels made by NVRTC through torch: (name, work, kind)."""
    compile_kernel = torch.cuda._compile_kernel
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    word, wrong = (torch.zeros(1, dtype=torch.int64, device=card.device) for _ in range(2))
    pairs = card.size // 16
    for unroll in (4, 8):
        text = f"#define UNROLL {unroll}\n" + SOURCE
        start = time.perf_counter()
        constant = compile_kernel(text, "constant")
        took = time.perf_counter() - start
        for blocks, threads in ((4, 512), (8, 256), (2, 1024), (16, 256)):
            grid, block = (sms * blocks, 1, 1), (threads, 1, 1)
            work = functools.partial(
                lambda x, g, b, k: k(grid=g, block=b, args=[x, word, wrong, pairs]), g=grid, b=block, k=constant
            )
            yield (f"nvrtc constant, {blocks} x {threads}, unrolled {unroll} (compiled in {took:.2f} s)", work, "read")
    address, check = compile_kernel(text, "write_address"), compile_kernel(text, "check_address")
    grid, block = (sms * 8, 1, 1), (256, 1, 1)
    yield "nvrtc address", lambda x: address(grid=grid, block=block, args=[x, word, pairs]), "write"
    wrong.zero_()
    yield "nvrtc address check", lambda x: check(grid=grid, block=block, args=[x, word, wrong, pairs]), "read"
    say("nvrtc address: wrong bits found in sound memory:", hex(int(wrong)))


TRITON = """
import triton
import triton.language as tl

@triton.jit
def constant(x, wrong, word, n, BLOCK: tl.constexpr, TURNS: tl.constexpr):
    bad = tl.zeros((BLOCK,), dtype=tl.int64)
    start = tl.program_id(0).to(tl.int64) * BLOCK * TURNS
    for turn in range(TURNS):
        at = start + turn * BLOCK + tl.arange(0, BLOCK)
        bad |= tl.load(x + at, eviction_policy="evict_first") ^ word
    tl.store(wrong + tl.program_id(0), tl.reduce(bad, 0, either))

@triton.jit
def either(a, b):
    return a | b
"""


def with_triton(card, folder):
    """Yield kernels by the Triton that comes with torch; it needs a C compiler."""
    file = folder / "triton_passes.py"
    file.write_text(TRITON)
    sys.path.insert(0, str(folder))
    import triton_passes as module

    n = card.size // 8
    for block, turns, warps in itertools.product((1024, 2048, 4096), (8, 32), (4, 8)):
        grid = (n // (block * turns),)
        wrong = torch.empty(grid, dtype=torch.int64, device=card.device)
        work = functools.partial(
            lambda x, g, o, b, t, w: module.constant[g](x, o, 0, n, BLOCK=b, TURNS=t, num_warps=w),
            g=grid,
            o=wrong,
            b=block,
            t=turns,
            w=warps,
        )
        yield f"triton constant, {block} x {turns}, {warps} warps", work, "read"


def in_streams(card):
    """Return the seconds of an ``aminmax`` queued on two streams, whose kernels may overlap."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    outs = [torch.empty(2, dtype=torch.int32, device=card.device) for _ in range(2)]
    best = 1e9
    for _ in range(ROUNDS):
        card.settle()
        start = time.perf_counter()
        for number, x in enumerate(card.chunks):
            with torch.cuda.stream(streams[number % 2]):
                low, high = outs[number % 2]
                torch.aminmax(x.view(torch.int32), out=(low, high))
        card.settle()
        best = min(best, time.perf_counter() - start)
    return best / len(card.chunks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--small", action="store_true", help="on a CPU, to see that it works")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    device = "cpu" if options.small else "cuda"
    name = "a CPU" if options.small else torch.cuda.get_device_name(0)
    peak = PEAKS.get(name)
    rows, missing = [], []

    def measure(card, kind, title, work, *, exact=False, traversals=1):
        if time.monotonic() > end:
            missing.append(f"{title}: no time left")
            return
        try:
            each, queue = card.time(work)
        except Exception as error:
            missing.append(f"{title}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
            return
        rate, through = (traversals * card.size / seconds for seconds in (each, queue))
        rows.append(
            {"kind": kind, "name": title, "chunk_bytes": card.size, "chunk": rate, "queue": through, "exact": exact}
        )
        share = f"{rate / peak:6.1%} {through / peak:6.1%}" if peak else ""
        mark = "exact" if exact else ""
        speed = f"{rate / 1e9:8.0f} {through / 1e9:8.0f} {share}"
        say(f"{kind:6} {card.size >> 20:5} MiB {speed}  {title}  {mark}")

    say(f"{name}, torch {torch.__version__}; GB/s of a chunk, of a queue, share of peak")
    sizes = (4, 8) if options.small else (1024, 256)
    for mib in sizes:
        card = Card(mib * MIB, 10 * sizes[0] * MIB, device)
        for title, work in writes(card):
            measure(card, "write", title, work)
        for title, work in changes(card):
            measure(card, "change", title, work, traversals=2)
        for x in card.chunks:
            x.zero_()
        for title, work, exact in reads(card):
            measure(card, "read", title, work, exact=exact)
        for title, work in twenties(card):
            measure(card, "write", title, work)
        for x in card.chunks:
            x.zero_()
        folder = options.json.parent if options.json else Path(tempfile.gettempdir())
        for title, more in (("nvrtc", compiled), ("triton", functools.partial(with_triton, folder=folder))):
            try:
                for name_, work, kind in more(card):
                    measure(card, kind, name_, work, exact=kind == "read")
            except Exception as error:
                missing.append(f"{title}, {mib} MiB: {type(error).__name__}: {str(error)[:300]}")
        try:
            rate = card.size / in_streams(card)
            rows.append(
                {
                    "kind": "read",
                    "name": "aminmax int32 on two streams",
                    "chunk_bytes": card.size,
                    "chunk": rate,
                    "queue": rate,
                    "exact": True,
                }
            )
            say(f"read   {mib:5} MiB          {rate / 1e9:8.0f}  aminmax int32 on two streams")
        except Exception as error:
            missing.append(f"two streams: {error}")
        del card
        if device == "cuda":
            torch.cuda.empty_cache()
    for line in missing:
        print("not measured:", line)
    if options.json:
        document = {"card": name, "torch": torch.__version__, "peak": peak, "rows": rows, "missing": missing}
        options.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
