"""Patterns: words written to all memory and checked, with a diagnosis of errors."""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .card import MAX_ERRORS, CardMemory, Work, filled, inverted, signed

#: 8-byte words in one row of a chunk; varying patterns vary by row and column
ROW_WORDS = 1 << 17
#: how often a bad chunk is diagnosed, and how many of its wrong words are examined
MAX_LOOKS, MAX_PLACES = 4, 4096
#: how much of a bad chunk is examined at a time: temporaries fit into the scratch
PART_WORDS = 1 << 18
#: passes of each pattern over all memory, for the progress (modulo: per offset)
TRAVERSALS = dict.fromkeys(("solid", "checkerboard", "random", "move", "modulo"), 4) | {
    "walking": 32,
    "address": 3,
    "retention": 2,
}
#: memtest86's distance between words of the modulo pattern: coprime to rows and cache lines
MODULO = 20
#: (chunk, indices in it, values there) -> the values before a check turned them into a constant
Restore = Callable[[int, Tensor, Tensor], Tensor]


class Patterns:
    """The patterns, each a method that returns the number of wrong words."""

    def __init__(self, worker: CardMemory, name: str, generator: random.Random) -> None:
        """Prepare the factors of patterns in which every word differs.

        The word at (row, column) is ``rows[row] * columns[column]`` modulo 2^64, all factors random: unique like an
        address, written and checked in one pass each, and, because ``rows`` are odd and hence invertible, a misplaced
        word reveals where it belongs.
        """
        self.worker, self.name = worker, name
        self.bad_chunks: set[int] = set()
        self.checks = 0
        self.generator = generator
        seeded = torch.Generator().manual_seed(generator.getrandbits(60))
        counts = [chunk.numel() // ROW_WORDS for chunk in worker.chunks]
        rows, self.columns = (
            torch.randint(-(1 << 62), 1 << 62, (count,), generator=seeded).to(worker.device)
            for count in (sum(counts), ROW_WORDS)
        )
        self.rows = list((rows * 2 + 1).split(counts))

    def solid(self) -> int:
        """All zeros, all ones: finds stuck bits, dead chips."""
        return self._constants(0)

    def checkerboard(self) -> int:
        """Neighbouring bits differ, and all toggle at once: finds coupling, crosstalk on the bus."""
        return self._constants(0x5555555555555555)

    def walking(self) -> int:
        """One bit of eight set, then one clear: finds faulty data lines, which bus inversion does not hide."""
        return self._constants(*(0x0101010101010101 << bit for bit in range(8)))

    def retention(self) -> int:
        """Leave memory idle for a while: finds leaking cells, failing refresh."""
        word = 0x3333333333333333
        self._sweep("write", lambda x, _: filled(x, word))
        self.worker.rest(self.worker.job.retention_seconds)
        return self._check(word)

    def address(self) -> int:
        """Give each word a unique value: finds ranges that are mirrored, swapped, or share cells."""
        self._sweep("broadcast", self._write)
        bad = self._verify()
        if bad:  # The check itself changes memory, and twice where two chunks share it.
            self._sweep("", self._write)
        for index in sorted(self.bad_chunks):  # find the chunks whose words they hold
            x = self.worker.chunks[index]
            place = torch.linspace(0, x.numel() - 1, 64, dtype=torch.float64, device=x.device).long()
            product = self.rows[index][place // ROW_WORDS] * self.columns[place % ROW_WORDS]
            homes = [self._home(word) for word in x[place][x[place] != product].tolist()[:4]]
            if any(homes):
                self.worker.send("located", chunk=index, belongs=[home for home in homes if home])
        return bad

    def random(self) -> int:
        """Random words and their inverse, different in each run: finds data-dependent faults."""
        self._sweep("broadcast", self._write)
        self._sweep("change", lambda x, _: inverted(x))
        return self._verify(inverted=True)

    def modulo(self) -> int:
        """Write every twentieth word, then all others: neither cache nor write combining hides the effect.

        Like test 8 of memtest86 and cuda_memtest, but the other words are checked as well.
        """
        return sum(
            self._modulo(offset, signed(self.generator.getrandbits(64)))
            for offset in self.generator.sample(range(MODULO), min(MODULO, self.worker.job.offsets))
        )

    def _modulo(self, offset: int, word: int) -> int:
        row = torch.full((MODULO,), ~word, device=self.worker.device)
        row[offset] = word

        def twentieth(x: Tensor, _: int) -> None:
            full_rows, rest = self._in_twenties(x)
            full_rows[:, offset].fill_(word)
            rest.fill_(0)  # the last few words of a chunk, an incomplete row

        def others(x: Tensor, _: int) -> None:
            full_rows = self._in_twenties(x)[0]
            full_rows[:, :offset].fill_(~word)
            full_rows[:, offset + 1 :].fill_(~word)

        def restore(index: int, place: Tensor, values: Tensor) -> Tensor:
            full_rows = self.worker.chunks[index].numel() // MODULO * MODULO
            return values ^ row[place % MODULO].masked_fill(place >= full_rows, 0)

        self.worker.sweep("", twentieth)
        self._sweep("", others)
        return self._check(0, (), lambda x, _: self._in_twenties(x)[0].bitwise_xor_(row), restore, kind="")

    def _in_twenties(self, x: Tensor) -> tuple[Tensor, Tensor]:
        full_words = x.numel() // MODULO * MODULO
        return x[:full_words].view(-1, MODULO), x[full_words:]

    def move(self) -> int:
        """Copy every second chunk over its neighbour: alternates reads and writes quickly."""
        chunks, bad = self.worker.chunks, 0
        pairs = [i for i in range(0, len(chunks) - 1, 2) if chunks[i].numel() == chunks[i + 1].numel()]
        for sources, step in (pairs, 1), ([pair + 1 for pair in pairs], -1):
            if sources:  # an empty list would mean all
                self._sweep("", self._write, sources)
                self._sweep("", lambda x, i, step=step: chunks[i + step].copy_(x), sources)  # type: ignore[misc]
                bad += self._verify([source + step for source in sources], origin=-step)
        return bad

    def _sweep(self, kind: str, work: Work, chunks: Sequence[int] = ()) -> None:
        self.worker.sweep(kind, work, chunks)
        self.worker.written(self.name)

    def _constants(self, *words: int) -> int:
        bad = 0
        for word in map(signed, words):
            self._sweep("write", lambda x, _, word=word: filled(x, word))  # type: ignore[misc]
            bad += self._check(word)
            self._sweep("change", lambda x, _: inverted(x))
            bad += self._check(signed(~word))
        return bad

    def _write(self, x: Tensor, index: int) -> None:
        torch.mul(self.rows[index][:, None], self.columns[None, :], out=x.view(-1, ROW_WORDS))

    def _verify(self, chunks: Sequence[int] = (), *, inverted: bool = False, origin: int = 0) -> int:
        """Turn the expected words into a constant, and check that.

        ``origin`` is the distance to the chunk from which the words were copied.
        """
        sign = 1 if inverted else -1

        def subtract(x: Tensor, index: int) -> None:
            rows = self.rows[index + origin][:, None]
            x.view(-1, ROW_WORDS).addcmul_(rows, self.columns[None, :], value=sign)

        def restore(index: int, place: Tensor, values: Tensor) -> Tensor:
            product = self.rows[index + origin][place // ROW_WORDS] * self.columns[place % ROW_WORDS]
            return values - sign * product

        return self._check(-1 if inverted else 0, chunks, subtract, restore)

    def _check(
        self,
        word: int,
        chunks: Sequence[int] = (),
        undo: Work | None = None,
        restore: Restore = lambda _index, _place, values: values,
        kind: str = "change",
    ) -> int:
        """Check that every word is ``word``: minimum and maximum are. One read, without scratch.

        ``undo`` turns the memory's content into this constant, ``restore`` recovers the original values.
        """
        worker = self.worker
        order = chunks or range(len(worker.chunks))
        bounds = worker.bounds(len(worker.chunks))
        if undo is not None:  # not by ``_sweep``: nothing is written for a later check
            worker.sweep(kind, undo, chunks)
        worker.sweep("read", lambda x, i: worker.extremes(x, bounds[0, i], bounds[1, i]), order)
        low, high = bounds[0].amin(1).tolist(), bounds[1].amax(1).tolist()
        self.checks += 1
        worker.verified += sum(worker.chunks[i].nbytes for i in order)
        wrong = [i for i in order if not low[i] == high[i] == word]
        return sum(self._diagnose(i, word, restore) for i in wrong)

    def _diagnose(self, index: int, word: int, restore: Restore) -> int:
        """Report the errors of a chunk: how many, where, which bits, and whether they persist."""
        worker, x = self.worker, self.worker.chunks[index]
        self.bad_chunks.add(index)
        places: list[Tensor] = []
        count = 0
        for number, part in enumerate(x.split(PART_WORDS)):
            wrong = (part != word).nonzero().flatten()
            if count < MAX_PLACES:
                places.append(wrong[:MAX_PLACES] + number * PART_WORDS)
            count += wrong.numel()
            worker.look()
        place = torch.cat(places)[:MAX_PLACES]
        reported_enough = worker.reports[index] >= MAX_LOOKS or worker.reports.total() >= MAX_ERRORS
        if not count or reported_enough:  # a transient read error, or reported often enough
            x.fill_(word)
            nothing: dict[str, Any] = {"samples": [], "bits": {}, "flips": {}}
            worker.send("bad", pattern=self.name, chunk=index, words=count, examined=not count, **nothing)
            return max(count, 1)
        worker.reports[index] += 1
        seen, again = restore(index, place, x[place]), restore(index, place, self._read_again(x, place))
        expected = restore(index, place, torch.full_like(place, word))
        mask = seen ^ expected
        bits = (mask[:, None] >> torch.arange(64, device=worker.device)) & 1
        stuck = torch.zeros_like(place)
        for value in (expected, ~expected):
            x[place] = value
            worker.written("rewrite")
            stuck |= self._read_again(x, place) ^ value
        x[place] = word
        names = ("expected", "got", "again", "stuck")
        rows = zip(*(tensor[:MAX_ERRORS].tolist() for tensor in (expected, seen, again, stuck)), strict=True)
        samples = [
            {"word": at} | {name: f"{word & ((1 << 64) - 1):016x}" for name, word in zip(names, row, strict=True)}
            for at, row in zip(place[:MAX_ERRORS].tolist(), rows, strict=True)
        ]
        for sample in samples[:4] if self.name == "address" else ():
            sample["belongs"] = self._home(int(sample["got"], 16))
        ones = bits.sum(1).tolist()
        flipped = {n: bit for n, bit in enumerate(bits.sum(0).tolist()) if bit}
        flips = {n: ones.count(n) for n in sorted(set(ones))}
        worker.send("bad", pattern=self.name, chunk=index, words=count, samples=samples, bits=flipped, flips=flips)
        return count

    def _read_again(self, x: Tensor, place: Tensor) -> Tensor:
        # Larger than the cache: the next read comes from memory.
        self.worker.extremes(x, *self.worker.bounds(1)[:, 0])
        return x[place]

    def _home(self, word: int) -> list[int] | None:
        """Return (chunk, index of the word) where a value of the address pattern belongs, if it is one."""
        rows = torch.cat(self.rows)
        inverse = rows.clone()
        for _ in range(5):  # Newton's step doubles the correct bits: 3, 6, ... 96
            inverse *= 2 - rows * inverse
        ordered, order = self.columns.sort()
        wanted = inverse * signed(word)
        near = torch.searchsorted(ordered, wanted).clamp(max=ROW_WORDS - 1)
        starts = [0, *itertools.accumulate(map(len, self.rows))]
        for row in (ordered[near] == wanted).nonzero().flatten().tolist():
            chunk = bisect.bisect_right(starts, row) - 1
            return [chunk, (row - starts[chunk]) * ROW_WORDS + int(order[near[row]])]
        return None
