"""Who grows on a card: named so that somebody can act on it, and nobody blamed for another one's memory."""

from wslgpud.model import CgroupState, GpuProcess, GpuSample, Level, Observation, ProcessSample, RamState
from wslgpud.risk.attribution import Culprit, GpuAttribution
from wslgpud.risk.engine import RiskEngine

GIB = 1 << 30


def card(*processes: GpuProcess) -> GpuSample:
    return GpuSample(0, "GPU-1", "a card", total_bytes=16 * GIB, processes=processes)


def blamed(*seen: tuple[GpuProcess, ...], lost_bytes_per_second: float = GIB / 10) -> Culprit:
    """Show one set of processes a second; return who is to blame for the last five."""
    attribution = GpuAttribution()
    for t, processes in enumerate(seen):
        attribution.push(float(t), card(*processes))
    return attribution.culprit(len(seen) - 1.0, card(*seen[-1]), 5.0, lost_bytes_per_second)


def test_a_program_of_this_system_is_named_with_its_pid():
    culprit = blamed(*((GpuProcess(7, "python", GIB + t * GIB // 10),) for t in range(10)))
    assert (culprit.text, culprit.kind) == ("python (pid 7)", "process")


def test_a_program_of_another_namespace_is_named_without_a_pid_that_means_nothing_here():
    culprit = blamed(*((GpuProcess(0, "python", GIB + t * GIB // 10),) for t in range(10)))
    assert culprit.text == "python (in another container or VM)"


def test_programs_without_a_pid_are_not_compared_with_one_another():
    desktop, trainer = GpuProcess(0, "Xwayland", GIB // 10), GpuProcess(0, "python", 8 * GIB)
    assert blamed(*[(desktop, trainer)] * 10).kind == "unknown"


def test_where_the_driver_tells_no_memory_the_newest_is_only_suspected():
    old, new = GpuProcess(7, "Xwayland", None), GpuProcess(0, "python", None)
    culprit = blamed(*[(old,)] * 5, *[(old, new)] * 5)
    assert (culprit.text, culprit.kind) == ("probably python (in another container or VM)", "guess")


def in_a_group(cgroup):
    """A group of 4 GiB that a worker fills while a browser outside grows just as fast."""
    engine, said = RiskEngine(), ""
    for i in range(120):
        held = int((0.5 + 0.03 * i) * GIB)
        processes = (
            ProcessSample(7, 1, "worker", held, 0, cgroup=cgroup),
            ProcessSample(8, 1, "browser", held + GIB, 0, cgroup="/user.slice" if cgroup else ""),
        )
        group = CgroupState("/docker/x", 4 * GIB, min(held, 4 * GIB))
        ram = RamState(64 * GIB, 30 * GIB)
        seen = engine.observe(Observation(t=float(i), ram=ram, cgroups=(group,), processes=processes))
        said = next((c.forecast.who for c in seen.changes if c.new >= Level.WARNING), said)
    return said


def test_who_fills_a_group_is_sought_among_those_that_are_in_it():
    assert in_a_group("/docker/x") == "worker (pid 7)"
    assert in_a_group("/docker/x/inner") == "worker (pid 7)"
    assert in_a_group("/docker/xy") == ""


def test_where_nobody_tells_who_is_in_a_group_the_culprit_is_only_probable():
    assert in_a_group("").startswith("probably ")
