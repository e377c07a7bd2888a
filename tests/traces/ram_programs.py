"""What people run on a machine's RAM, made of the libraries they use; for ``record_cgroup.py``.

    python -m tests.traces.record_cgroup OUT.jsonl.gz 3072 python tests/traces/ram_programs.py NAME

Each is meant for a limit of 3 GiB, and the calm ones end after two minutes. Needs NumPy, SciPy, pandas, pyarrow,
scikit-learn, NetworkX, OpenCV, lxml, Numba, h5py and g++. Written in November 2026, before any rule was made that
is judged by their recordings.
"""

from __future__ import annotations

import collections
import functools
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np

SECONDS = 120.0
LIMIT_BYTES = 3 << 30
NAME = sys.argv[1] if len(sys.argv) > 1 else ""
rng = random.Random(NAME)
noise = np.random.default_rng(len(NAME))
began = time.monotonic()
PROGRAMS = {}


def program(run):
    """Let a function be run by its name."""
    PROGRAMS[run.__name__] = run
    return run


def going_on():
    return time.monotonic() - began < SECONDS


# Tables.


def _table(rows):
    import pandas as pd

    names = [f"user-{n % 9973}" for n in range(rows)]
    return pd.DataFrame({"at": np.arange(rows), "value": noise.random(rows), "user": names})


@program
def frames_oom():
    """Reads a folder of files into a list of tables, to put them together at the end."""
    kept = []
    while True:
        kept.append(_table(rng.randint(200_000, 600_000)))
        time.sleep(rng.uniform(0.3, 0.8))


@program
def frames_grouped():
    """The same files, each reduced to its sums at once."""
    sums = None
    while going_on():
        found = _table(rng.randint(300_000, 2_000_000)).groupby("user")["value"].sum()
        sums = found if sums is None else sums.add(found, fill_value=0)
        time.sleep(rng.uniform(0.2, 0.6))


@program
def arrow_sorted_oom():
    """Joins and sorts batches; every fifth time all of them together."""
    import pyarrow as pa
    from pyarrow import compute

    kept = []
    while True:
        rows = rng.randint(800_000, 2_400_000)
        kept.append(pa.table({"key": noise.integers(0, 1 << 40, rows), "value": noise.random(rows)}))
        if len(kept) % 5 == 0:
            whole = pa.concat_tables(kept)
            whole = whole.take(compute.sort_indices(whole, sort_keys=[("key", "ascending")]))
            del whole
        time.sleep(rng.uniform(0.5, 1.0))


# Learning.


@program
def forest():
    """Adds trees to a forest as long as it gets better."""
    from sklearn.ensemble import RandomForestRegressor

    data, wanted = noise.random((120_000, 20)), noise.random(120_000)
    forest = RandomForestRegressor(n_estimators=4, warm_start=True, n_jobs=2)
    while True:
        forest.fit(data, wanted)
        forest.n_estimators += 4


@program
def search_workers_oom():
    """A search over settings with ever more workers, each with its copy of the data."""
    workers = []
    code = "import sys, time, numpy; a = numpy.random.random((int(sys.argv[1]) << 17)); time.sleep(40); a.sum()"
    while True:
        workers.append(subprocess.Popen([sys.executable, "-c", code, str(rng.randint(250, 450))]))
        time.sleep(rng.uniform(2.0, 6.0))


@program
def crossvalidation():
    """Fits models of all sizes one after another."""
    from sklearn.decomposition import PCA

    while going_on():
        PCA(20).fit(noise.random((rng.randint(10_000, 60_000), 2000), dtype=np.float32))


# Graphs, trees and texts, as Python's objects.


@program
def graph_grows_oom():
    """Crawls: a graph that gets nodes with what is known of them."""
    import networkx as nx

    graph = nx.Graph()
    while True:
        first = len(graph)
        for node in range(first, first + 16_000):
            graph.add_node(node, url=f"https://example.org/{node}", seen=time.time())
            graph.add_edges_from((node, rng.randrange(max(1, node))) for _ in range(4))
        time.sleep(0.25)


@program
def graph_ranked():
    """Ranks the nodes of a graph again and again."""
    import networkx as nx

    graph = nx.fast_gnp_random_graph(60_000, 0.0002, seed=1, directed=True)
    while going_on():
        nx.pagerank(graph, max_iter=20, tol=1.0)


@program
def tree_parsed_oom():
    """Puts parsed documents under one root, the longer the later."""
    from lxml import etree

    root, lines = etree.Element("all"), 2000.0
    while True:
        inside = "".join(f'<row id="{n}"><name>n{n}</name><text>{"x" * 40}</text></row>' for n in range(int(lines)))
        root.append(etree.fromstring(f"<part>{inside}</part>"))
        lines *= 1.01
        time.sleep(0.1)


@program
def memo_oom():
    """A cache without a limit in front of something slow."""

    @functools.cache
    def answer(question):
        return zlib.compress(os.urandom(6000)) + question.encode()

    while True:
        for _ in range(900):
            answer(f"{rng.random():.9f}")
        time.sleep(0.08)


@program
def memo_bounded():
    """The same with a limit."""

    @functools.lru_cache(maxsize=240_000)
    def answer(question):
        return zlib.compress(os.urandom(6000)) + question.encode()

    while going_on():
        for _ in range(1200):
            answer(f"{rng.random():.9f}")
        time.sleep(0.08)


# Pictures and films.


@program
def film_oom():
    """Decodes a film into memory for an editor."""
    import cv2

    kept = []
    while True:
        small = noise.integers(0, 255, (270, 480, 3), dtype=np.uint8)
        kept.append(cv2.GaussianBlur(cv2.resize(small, (1280, 720)), (9, 9), 0))
        time.sleep(0.06)


@program
def film_window():
    """The same, with the last seconds only; each cut begins anew."""
    import cv2

    kept = collections.deque(maxlen=620)
    while going_on():
        kept.append(cv2.resize(noise.integers(0, 255, (270, 480, 3), dtype=np.uint8), (1280, 720)))
        if rng.random() < 0.002:
            kept.clear()
        time.sleep(0.04)


@program
def panorama_oom():
    """Stitches pictures: the canvas is copied into a larger one for each."""
    canvas = np.zeros((2000, 2000, 3), dtype=np.float32)
    while True:
        larger = np.zeros((canvas.shape[0] + 180, canvas.shape[1] + 260, 3), dtype=np.float32)
        larger[: canvas.shape[0], : canvas.shape[1]] = canvas
        canvas = larger
        time.sleep(1.4)


# Simulation.


@program
def particles_oom():
    """Keeps each step of a simulation whose number of particles grows."""
    film, count = [], 40_000
    while True:
        film.append(noise.random((count, 6)))
        count = int(count * 1.006) + 50
        time.sleep(0.15)


@program
def fluid():
    """A fluid on a fixed grid, with a file of results."""
    import h5py

    grid = noise.random((400, 400, 400), dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder, h5py.File(Path(folder) / "out.h5", "w") as file:
        step = 0
        while going_on():
            grid = 0.5 * grid + 0.25 * (np.roll(grid, 1, 0) + np.roll(grid, -1, 0))
            file.create_dataset(str(step), data=grid[::4, ::4, ::4])
            step += 1


@program
def factorized_oom():
    """Solves finer and finer grids directly: the factors fill in."""
    from scipy.sparse import diags
    from scipy.sparse.linalg import splu

    side = 120
    while True:
        cells = side * side
        wide = [np.ones(cells), np.ones(cells), 4.1 * np.ones(cells), np.ones(cells), np.ones(cells)]
        splu(diags(wide, [-side, -1, 0, 1, side], shape=(cells, cells), format="csc")).solve(np.ones(cells))
        side += 60
        time.sleep(0.4)


# Databases, compressors, builds.


@program
def memory_database_oom():
    """SQLite in memory, with an index, fed by a queue that never ends."""
    with sqlite3.connect(":memory:") as base:
        base.execute("CREATE TABLE event (at REAL, name TEXT, body BLOB)")
        base.execute("CREATE INDEX named ON event (name)")
        while True:
            rows = [(time.time(), f"n{rng.random()}", os.urandom(400)) for _ in range(rng.randint(24_000, 60_000))]
            base.executemany("INSERT INTO event VALUES (?, ?, ?)", rows)
            time.sleep(rng.uniform(0.2, 0.6))


@program
def file_database():
    """The same in a file: what grows is the page cache."""
    with tempfile.TemporaryDirectory() as folder, sqlite3.connect(Path(folder) / "base.db") as base:
        base.execute("CREATE TABLE event (at REAL, name TEXT, body BLOB)")
        while going_on():
            rows = [(time.time(), f"n{rng.random()}", os.urandom(400)) for _ in range(20_000)]
            base.executemany("INSERT INTO event VALUES (?, ?, ?)", rows)
            base.commit()
            time.sleep(0.3)


def _compressors(most):
    running = []
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(60):
            file.write(os.urandom(1 << 20) * 4)
        file.flush()
        while going_on():
            running = [one for one in running if one.poll() is None]
            if len(running) < most:
                command = ["xz", "-9", "-T1", "-k", "-c", file.name]
                running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            time.sleep(rng.uniform(3.0, 7.0))


@program
def compressors_oom():
    """Compresses backups, one more at a time: each takes 674 MiB at its highest level."""
    _compressors(99)


@program
def compressors():
    """Compresses backups, two at a time."""
    _compressors(2)


def _compilers(most):
    header = "#include <map>\n#include <regex>\n#include <string>\n#include <tuple>\n#include <vector>\n"
    with tempfile.TemporaryDirectory() as folder:
        source, running, number = Path(folder) / "a.cc", [], 0
        while going_on():
            running = [one for one in running if one.poll() is None]
            while len(running) < most(number):
                number += 1
                source = Path(folder) / f"{number}.cc"
                kinds = "".join(
                    f"template <int N> struct T{k} {{ std::map<std::string, std::vector<std::tuple<int, double>>> m; "
                    f'static int f() {{ return N + T{k}<N - 1>::f() + std::regex_match("a", std::regex("a")); }} }};\n'
                    f"template <> struct T{k}<0> {{ static int f() {{ return 0; }} }};\n"
                    for k in range(4)
                )
                calls = " + ".join(f"T{k}<{rng.randint(500, 950)}>::f()" for k in range(4))
                source.write_text(f"{header}{kinds}int g{number}() {{ return {calls}; }}\n")
                command = [
                    "g++",
                    "-O2",
                    "-ftemplate-depth=2000",
                    "-c",
                    str(source),
                    "-o",
                    str(source.with_suffix(".o")),
                ]
                running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            time.sleep(0.3)


@program
def compilers_ten():
    """A build with ten compilers, begun one after another."""
    _compilers(lambda number: min(10, 2 + number // 2))


@program
def compilers_two():
    """A build with two."""
    _compilers(lambda _: 2)


if __name__ == "__main__":
    PROGRAMS[NAME]()
