"""Growth on a card: the program is named so that the user can act, and none is blamed for another's memory."""

from wslgpud.model import CgroupState, GpuProcess, GpuSample, Observation, ProcessSample
from wslgpud.risk.attribution import Culprit, GpuAttribution
from wslgpud.risk.engine import RiskEngine

GIB = 1 << 30


def card(*processes: GpuProcess) -> GpuSample:
    return GpuSample(0, "GPU-1", "a card", total_bytes=16 * GIB, processes=processes)


def blamed(*seen: tuple[GpuProcess, ...], lost_bytes_per_second: float = GIB / 10) -> Culprit:
    """Show one set of processes per second; return the one blamed for the last five."""
    attribution = GpuAttribution()
    for t, processes in enumerate(seen):
        attribution.push(float(t), card(*processes))
    scripts = (ProcessSample(8, 1, "python3", GIB, 0, command="python3 train.py"),)
    now = Observation(t=len(seen) - 1.0, processes=scripts)
    return attribution.culprit(now, card(*seen[-1]), 5.0, lost_bytes_per_second)


def test_a_program_of_this_system_is_named_with_its_pid():
    culprit = blamed(*((GpuProcess(7, "python", GIB + t * GIB // 10),) for t in range(10)))
    assert (culprit.who, culprit.kind, culprit.pid) == ("python (pid 7)", "process", 7)


def test_a_program_on_a_card_is_named_by_the_script_it_runs():
    culprit = blamed(*((GpuProcess(8, "python3", GIB + t * GIB // 10),) for t in range(10)))
    assert culprit.who == "python3 train.py (pid 8)"


def test_a_program_of_another_namespace_is_named_without_its_pid():
    culprit = blamed(*((GpuProcess(0, "python", GIB + t * GIB // 10),) for t in range(10)))
    assert str(culprit.who) == "python (in another container or VM)"


def test_programs_without_a_pid_are_not_compared_with_each_other():
    desktop, trainer = GpuProcess(0, "Xwayland", GIB // 10), GpuProcess(0, "python", 8 * GIB)
    assert blamed(*[(desktop, trainer)] * 10).kind == "unknown"


def test_a_list_that_was_not_read_once_makes_nobody_a_newcomer():
    seen = [(GpuProcess(7, "python", 8 * GIB), GpuProcess(9, "leak", GIB + t * GIB // 10)) for t in range(10)]
    assert blamed(*seen).who == "leak (pid 9)"
    assert blamed(*seen[:7], (), *seen[8:]).who == "leak (pid 9)"


def test_without_memory_per_process_the_newest_is_only_suspected():
    old, new = GpuProcess(7, "Xwayland", None), GpuProcess(0, "python", None)
    culprit = blamed(*[(old,)] * 5, *[(old, new)] * 5)
    assert (str(culprit.who), culprit.kind, culprit.pid) == (
        "probably python (in another container or VM)",
        "guess",
        None,
    )
    culprit = blamed(*[(new,)] * 5, *[(new, old)] * 5)
    assert (str(culprit.who), culprit.kind, culprit.pid) == ("probably Xwayland (pid 7)", "guess", 7)


def test_only_a_member_of_a_full_group_is_blamed():
    def blamed_at_the_end(**where: str) -> str:
        engine = RiskEngine()
        for i in range(100):
            own, other = ((300 + 30 * i) << 20, (300 + 33 * i) << 20)
            processes = (
                ProcessSample(1, 1, "qemu", other, 0, command="qemu", cgroup=where.get("qemu", "")),
                ProcessSample(2, 1, "python", own, 0, command="python", cgroup=where.get("python", "")),
            )
            group = CgroupState("/job", 4 * GIB, (400 + 30 * i) << 20)
            forecasts = engine.observe(Observation(t=float(i), processes=processes, cgroups=(group,))).forecasts
        (forecast,) = forecasts
        return f"{forecast.who}/{forecast.who_kind}"

    assert blamed_at_the_end(qemu="/vm", python="/job/7") == "python (pid 2)/process"
    assert blamed_at_the_end(qemu="/vm", python="/vm") == "/"
    assert blamed_at_the_end() == "probably qemu (pid 1)/process"  # where nobody knows who is in it
