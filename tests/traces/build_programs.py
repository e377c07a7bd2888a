"""A parallel build of real C++ or CUDA files, each of which takes a compiler some hundred MB.

COMMAND="python tests/traces/build_programs.py g++|nvcc JOBS FILES FOLDER"
python -m tests.traces.record_cgroup OUT.jsonl.gz 2048 $COMMAND
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

CUDA = """#include <thrust/device_vector.h>
#include <thrust/sort.h>
#include <cub/cub.cuh>
template <typename T> void work(thrust::device_vector<T>& v) {
  thrust::sort(v.begin(), v.end()); thrust::stable_sort(v.begin(), v.end());
}
"""
CXX = """#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <ranges>
#include <regex>
#include <unordered_map>
#include <vector>
template <typename T, int N> struct Table {
  std::map<T, std::vector<std::pair<T, Table<T, N - 1>>>> rows; std::unordered_map<T, std::regex> seen;
  T sum(std::vector<T>& v) {
    std::ranges::sort(v, [](T a, T b) { return a + N < b; }); std::stable_sort(v.begin(), v.end());
    for (auto& [k, r] : rows) for (auto& [t, sub] : r) v.push_back(sub.sum(v) + t);
    return std::accumulate(v.begin(), v.end(), T(N), [](T a, T b) { return a * N + b; });
  }
};
template <typename T> struct Table<T, 0> { T sum(std::vector<T>& v) { return T(v.size()); } };
template <typename T> T work(std::vector<T>& v) { return Table<T, DEPTH>{}.sum(v); }
"""
TYPES = ("int", "float", "double", "long", "short", "unsigned", "char", "unsigned long")
KINDS = {
    "nvcc": ("cu", CUDA, "template void work<{}>(thrust::device_vector<{}>&);", "nvcc -c -arch=sm_90"),
    "g++": ("cpp", CXX, "template {0} work<{0}>(std::vector<{0}>&);", "g++ -std=c++20 -O2 -c -DDEPTH=12"),
}


def write(compiler, files, folder):
    """Write the sources and a Makefile: no two files that follow each other are equally hard."""
    suffix, head, instance, command = KINDS[compiler]
    rules = []
    for number in range(files):
        kinds = itertools.islice(itertools.cycle(TYPES), number % 8, number % 8 + 1 + number % 5)
        lines = [instance.format(kind, kind) for kind in kinds]
        (folder / f"u{number}.{suffix}").write_text(head + "\n".join(lines) + "\n")
        rules.append(f"u{number}.o: u{number}.{suffix}\n\t{command} $< -o $@\n")
    objects = " ".join(f"u{number}.o" for number in range(files))
    (folder / "Makefile").write_text(f"all: {objects}\n" + "".join(rules))


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[3]), folder := Path(sys.argv[4]))
    sys.exit(subprocess.run(["make", "--silent", f"-j{sys.argv[2]}", "-C", str(folder)], check=False).returncode)
