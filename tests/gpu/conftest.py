from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from wslgpud.config import Config, Sampling
from wslgpud.host import Host, RecordedHost
from wslgpud.sources.gpu import GpuSource

FAKE = Path(__file__).parents[1] / "fake_nvml" / "fake_nvml.c"


class Clock:
    """Time that a test moves on; only the waits between restarts go by it."""

    def __init__(self):
        self.now = 1000.0

    def wall(self):
        return 1.7e9 + self.now

    def mono(self):
        return self.now


class Machine:
    """A machine whose NVML is our own library, changed by writing its settings."""

    def __init__(self, folder, built, clock):
        self.library = folder / "libnvidia-ml.so.1"
        self.clock = clock
        self._built = built
        self._settings = {}
        self.install()

    def install(self):
        shutil.copy(self._built, self.library)

    def uninstall(self):
        self.library.unlink()

    def set(self, **settings):
        """Lay settings over those in force; None takes one away. Escapes write odd bytes."""
        self._settings.update(settings)
        lines = [f"{k} {v}\n" for k, v in self._settings.items() if v is not None]
        file = self.library.with_name(self.library.name + ".settings")
        new = file.with_suffix(".new")
        new.write_bytes("".join(lines).encode().decode("unicode_escape").encode("latin-1"))
        new.rename(file)  # at once, or the library might read half of it

    def gpu(self, index, **settings):
        """As ``set``, for one GPU alone."""
        self.set(**{f"{key}@{index}": value for key, value in settings.items()})


@pytest.fixture(scope="session")
def built_library(tmp_path_factory):
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler (cc) to build the fake NVML library with")
    library = tmp_path_factory.mktemp("fake_nvml") / "libnvidia-ml.so.1"
    options = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *options, "-o", library, FAKE, "-ldl"], check=True)
    return library


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def machine(built_library, tmp_path, clock):
    return Machine(tmp_path, built_library, clock)


@pytest.fixture
def open_source():
    """Open GPU sources that are closed after the test."""
    opened = []

    def open_on(host, timeout_seconds=10.0, library=""):
        sampling = Sampling(gpu_timeout_seconds=timeout_seconds, nvml_library=str(library))
        opened.append(GpuSource(host, Config(sampling=sampling)))
        return opened[-1]

    yield open_on
    for source in opened:
        source.close()


@pytest.fixture
def source(machine, open_source):
    return open_source(Host(clock=machine.clock), library=machine.library)


@pytest.fixture
def recorded(tmp_path):
    """Make a recorded machine: its NVML answers, its files and links."""

    def make(nvml, files=(), links=()):
        folder = tmp_path / "host"
        (folder / "root").mkdir(parents=True)
        for file, text in dict(files).items():
            path = folder / "root" / file.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        facts = {"kind": "synthetic", "origin": "this test", "wall": 1.7e9, "mono": 100.0, "links": dict(links)}
        (folder / "host.json").write_text(json.dumps(facts))
        if nvml is not None:
            (folder / "nvml.json").write_text(json.dumps(nvml))
        return RecordedHost(folder)

    return make


def values(sample, name):
    """Return the values of one metric by their labels beyond GPU and UUID."""
    return {r.labels[2:]: r.value for r in sample.readings if r.spec.name == name}


def by_gpu(sample, name):
    """Return the values of one metric by GPU."""
    return {r.labels[0]: r.value for r in sample.readings if r.spec.name == name}


@pytest.fixture(name="values")
def values_fixture():
    return values


@pytest.fixture(name="by_gpu")
def by_gpu_fixture():
    return by_gpu
