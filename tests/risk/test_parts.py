"""The parts of the engine, each by itself."""

import pytest

from wslgpud.model import CgroupState, Forecast, GpuSample, Level, Observation, PsiState, RamState, SwapState, VmState
from wslgpud.risk.forecast_messages import headline
from wslgpud.risk.growth import Envelope, Jumps, Peaks
from wslgpud.risk.headroom import cgroup_room, gpu_room, ram_room
from wslgpud.risk.levels import Danger, Hysteresis, headroom_for_warning, level_for
from wslgpud.risk.scarcity import PressureMeter
from wslgpud.risk.settings import RiskSettings
from wslgpud.risk.staircases import STACK_BELIEF, StepLedger
from wslgpud.words import ENGLISH
from wslgpud.words.units import size

S = RiskSettings()
MIB = 1 << 20


def envelope(path):
    found = Envelope(S.noise, S.jump)
    for t, used in path:
        found.push(t, used)
    return found


def test_a_steady_growth_is_seen_with_its_rate_and_time_left():
    growths = envelope((float(i), 0.2 + 0.004 * i) for i in range(100)).growths(1 - 0.2 - 0.004 * 99)
    assert growths
    for growth in growths:
        assert growth.rate == pytest.approx(0.004, rel=0.1)
        assert growth.eta_seconds == pytest.approx((1 - 0.2 - 0.396) / 0.004, rel=0.1)


def test_the_further_it_has_come_the_likelier_it_goes_on():
    chances = []
    for samples in (60, 100, 140):
        path = [(float(i), 0.2 + 0.005 * i) for i in range(samples)]
        chances.append(max(g.probability for g in envelope(path).growths(1 - path[-1][1])))
    assert chances == sorted(chances)


def test_a_jump_is_not_growth_even_with_a_sample_in_its_middle():
    for middle in ([], [(50.0, 0.35)], [(50.0, 0.13)], [(50.0, 0.85)]):
        path = [(float(i), 0.1) for i in range(50)] + middle + [(51.0 + i, 0.9) for i in range(40)]
        found = Envelope(S.noise, S.jump)
        for t, used in path:
            found.push(t, used)
            assert not [g for g in found.growths(1 - used) if g.probability >= S.warn_probability]


def test_the_past_comes_down_once_half_of_a_plateau_is_returned() -> None:
    jumps = Jumps(S.jump)
    lifted = sum(jumps.update(used, new_block=True).by for used in [0.2] * 10 + [0.5] * 80)
    shifts = [jumps.update(used, new_block=True).by for used in (0.48, 0.4, 0.3, 0.2, 0.1, 0.15)]

    assert lifted == pytest.approx(0.3)
    assert shifts == pytest.approx([0, 0, -0.2, -0.1, 0, 0])


def test_a_sample_in_the_middle_of_a_jump_does_not_lift_the_past():
    """Found on a made-up server: the weights in a ramp, a pause, then its pool within half a second."""
    found = Envelope(S.noise, S.jump)
    ramp = [(i * 0.25, 0.1 + 0.38 * min(1.0, i / 20)) for i in range(40)]
    for t, used in [*ramp, (10.0, 0.55), (10.25, 0.795), *((10.5 + i * 0.25, 0.8) for i in range(60))]:
        found.push(t, used)
        if used > 0.7:
            assert not [g for g in found.growths(1 - used) if g.probability >= S.warn_probability]


def test_a_rising_floor_under_a_sawtooth_is_seen():
    found = Envelope(S.noise, S.jump)
    for tooth in range(20):
        for part, above in enumerate((0.12, 0.08, 0.04)):
            found.push(2.0 * (3 * tooth + part), 0.2 + 0.03 * tooth + above)
    assert max(g.probability for g in found.growths(0.15)) > S.warn_probability


def test_copies_that_come_and_go_are_no_growth():
    found = Envelope(S.noise, S.jump)
    for i in range(400):
        used = 0.56 + 0.2 * (i > 20 and i % 18 == 0) + 0.01 * ((i // 18) % 2)
        found.push(0.5 * i, used)
        assert not [g for g in found.growths(1 - used) if g.probability >= S.warn_probability]


def test_a_ramp_of_large_samples_is_not_taken_for_a_jump():
    path = [(float(i), 0.1) for i in range(20)] + [(20.0 + i, 0.1 + 0.1 * i) for i in range(8)]
    assert max(g.probability for g in envelope(path).growths(0.2)) > S.warn_probability


def test_the_envelope_of_a_saw_is_flat():
    path = [(float(i), 0.3 + 0.3 * (i % 10) / 10) for i in range(400)]
    assert not [g for g in envelope(path).growths(0.43) if g.window_seconds > 40]


def stairs(sizes, dwell=12, start=0.1):
    ledger, used, t = StepLedger(S.step), start, 0.0
    for height in sizes:
        for _ in range(dwell):
            ledger.feed(t, used)
            t += 1.0
        used += height
    for _ in range(dwell // 2):
        ledger.feed(t, used)
        t += 1.0
    return ledger.danger(t, 1.0 - used, lambda *_: 1.0)


def test_a_staircase_tells_how_many_more_steps_fit():
    found = stairs([0.1] * 6)
    assert found.eta_seconds == pytest.approx(3 * 12 - 6, abs=0.5 * 12)


def test_steps_that_double_are_expected_to_double_again():
    found = stairs([0.03, 0.06, 0.12, 0.24])
    assert found.next_step == pytest.approx(0.48, abs=0.02)
    assert found.eta_seconds < 1.1 * 12 - 6


def waits(gaps, sizes, start=0.05):
    """Climb by sizes, each after a wait in seconds; return the verdict a while after the last."""
    ledger, used, t = StepLedger(S.step), start, 0.0
    for gap, height in zip((*gaps, gaps[-1] // 2), (*sizes, 0.0), strict=True):
        for _ in range(gap):
            ledger.feed(t, used)
            t += 1.0
        used += height
    return ledger.danger(t, 1.0 - used, lambda *_: 1.0)


def test_a_table_that_doubles_when_full_is_a_staircase():
    found = waits([10, 10, 20, 40], [0.03, 0.06, 0.12, 0.24])
    assert found.next_step == pytest.approx(0.48, abs=0.02)
    assert found.eta_seconds == pytest.approx(80 - 20, abs=5)
    assert waits([10, 40, 10, 25], [0.12, 0.1, 0.13, 0.11]) is None


def test_a_few_jumps_at_the_start_of_a_program_are_no_staircase():
    assert stairs([0.1, 0.3]) is None
    assert stairs([0.1, 0.3, 0.1]) is None


def test_a_fall_ends_a_staircase():
    assert stairs([0.1, 0.1, 0.1, -0.2, 0.1]) is None
    assert stairs([0.1, 0.1, 0.1, 0.1, -1.6 * S.step]) is None
    assert stairs([0.1, 0.1, 0.1, 0.1, -1.4 * S.step]) is not None, "a flicker does not"


def pile(sizes, gaps, start=0.1, still=2):
    """Allocate blocks of these sizes, each after a wait in seconds; return the verdict on the total."""
    ledger, used, t = StepLedger(S.step), start, 0.0
    for gap, height in zip((*gaps, still), (*sizes, 0.0), strict=True):
        for _ in range(2 * gap):
            ledger.feed(t, used)
            t += 0.5
        used += height
    return ledger.danger(t, 1.0 - used, lambda *_: 1.0)


def test_piled_up_models_are_a_stack_once_another_will_not_fit():
    stack = pile([0.2, 0.16, 0.21, 0.18], [8, 2, 9, 3])
    assert stack.probability == STACK_BELIEF
    assert stack.next_step == pytest.approx(0.2)
    assert stack.eta_seconds == pytest.approx((2 + 9 + 3) / 3 - 1.5, abs=1)
    assert pile([0.15, 0.12, 0.16, 0.14], [8, 2, 9, 3]) is None  # another fits


def test_three_blocks_small_ones_or_one_large_pool_are_no_stack():
    assert pile([0.28, 0.25, 0.27], [8, 2, 9]) is None
    assert pile([0.3, 0.2, 0.22, 0.03], [8, 2, 9, 3]) is None
    assert pile([0.1, 0.05, 0.12, 0.4], [8, 2, 9, 3]) is None
    assert pile([0.2, 0.16, 0.21, 0.18], [8, 2, 9, 3], still=40) is None  # for how long nothing came


def test_what_leaps_up_on_top_of_a_staircase_is_no_step_of_it():
    assert stairs([0.05, 0.05, 0.05, 0.05]) is not None
    assert stairs([0.05, 0.05, 0.05, 0.05, 0.4]) is None


def test_the_top_of_a_growth_itself_is_no_reason_to_doubt_it():
    peaks = Peaks(S.swing, S.peak_memory_seconds)
    for t, used in enumerate([0.1, 0.8, 0.7]):
        peaks.push(float(t), used)
    assert peaks.doubt(0.8, 0.0) == 0
    assert peaks.doubt(0.8, 2.5) == 1


def test_growth_near_an_earlier_peak_is_doubted_less_as_it_rises():
    peaks = Peaks(S.swing, 3600.0)
    for i in range(200):
        peaks.push(float(i), 0.2 + 0.5 * (i % 20) / 19)
    assert peaks.doubt(0.6, 1e9) >= 5
    assert 0 < peaks.doubt(0.72, 1e9) < peaks.doubt(0.6, 1e9)
    assert peaks.doubt(0.8, 1e9) == 0
    assert peaks.period_seconds == pytest.approx(20, abs=1)


def test_peaks_are_forgotten_in_time():
    peaks = Peaks(S.swing, 100.0)
    for i in range(40):
        peaks.push(float(i), 0.2 + 0.5 * (i % 20) / 19)
    peaks.push(41.0, 0.2)
    assert peaks.doubt(0.3, 1e9) == 2
    peaks.push(500.0, 0.2)
    assert peaks.doubt(0.3, 1e9) == 0


def test_less_time_means_an_earlier_warning():
    shares = [headroom_for_warning(eta, S) for eta in (1, 5, 10, 20, 50, 600, 2000, 5000)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == 0


def growth(eta, probability=0.9):
    return Danger("growth", probability, eta, 100.0, early_seconds=eta, now_seconds=eta, rate=0.1 / eta)


def test_the_worse_the_danger_the_higher_the_level():
    assert level_for(growth(40, 0.2), 0.1, 0.0, S) == Level.OK
    assert level_for(growth(40), 0.4, 0.0, S) == Level.INFO
    assert level_for(growth(40), 0.15, 0.0, S) == Level.WARNING
    assert level_for(growth(40), 0.05, 0.0, S) == Level.CRITICAL
    assert level_for(growth(5), 0.02, 0.0, S) == Level.EMERGENCY
    assert level_for(growth(7200), 0.05, 0.0, S) == Level.OK


def test_a_load_of_a_few_seconds_is_critical_only_near_the_limit():
    assert level_for(growth(1.5, 0.55), 0.075, 0.0, S) == Level.WARNING
    assert level_for(growth(30), 0.075, 0.0, S) == Level.CRITICAL


def test_memory_likely_to_run_out_within_seconds_is_critical():
    assert level_for(growth(8, 0.6), 0.25, 0.0, S) == Level.CRITICAL
    assert level_for(growth(9, 0.6), 0.2, 0.0, S) == Level.WARNING
    assert level_for(growth(8, 0.59), 0.2, 0.0, S) == Level.WARNING
    assert level_for(growth(8)._replace(pace=0.4), 0.2, 0.0, S) == Level.WARNING


def test_an_imminent_step_that_does_not_fit_is_critical():
    due = Danger("steps", 0.7, 6.0, 5.0, early_seconds=6.0, next_step=0.2, last_step=0.18)
    assert level_for(due, 0.15, 0.0, S) == Level.CRITICAL
    assert level_for(due._replace(eta_seconds=20.0), 0.15, 0.0, S) == Level.WARNING
    assert level_for(due._replace(next_step=0.1, last_step=0.05, early_seconds=60.0), 0.25, 0.0, S) == Level.INFO


def step(machine, t, want, share):
    return machine.step(t, want, share, 0.0, 0.0)


def test_an_alert_outlives_a_dip_and_ends_when_memory_is_back():
    machine = Hysteresis(S)
    assert step(machine, 0, Level.WARNING, 0.2) == Level.WARNING
    assert step(machine, 5, Level.OK, 0.6) == Level.WARNING
    assert step(machine, 20, Level.OK, 0.21) == Level.WARNING
    assert step(machine, 30, Level.OK, 0.6) == Level.WARNING
    assert step(machine, 30 + S.recovery_seconds, Level.OK, 0.6) == Level.OK


def test_an_alert_ends_early_only_when_headroom_stays_well_above():
    for began, raised in ((0.2, 0.2), (0.25, 0.1)):  # what counts is where its level was raised last
        short, enough = Hysteresis(S), Hysteresis(S)
        for machine in (short, enough):
            machine.step(0, Level.WARNING, began, S.warn_eta_seconds, 0.0)
            machine.step(1, Level.CRITICAL, raised, S.warn_eta_seconds, 0.0)
        held = [short.step(2.0 + t, Level.OK, raised + S.recovery - 0.001, 0.0, 0.0) for t in range(600)]
        assert set(held) == {Level.CRITICAL}
        held = [enough.step(2.0 + t, Level.OK, raised + S.recovery + 0.001, 0.0, 0.0) for t in range(600)]
        assert held.index(Level.OK) == S.recovery_seconds


def test_with_ample_headroom_an_alert_ends_wherever_it_began():
    machine = Hysteresis(S)
    machine.step(0, Level.WARNING, 0.58, S.warn_eta_seconds, 0.0)
    held = [machine.step(1.0 + t, Level.OK, S.recovered_headroom, 0.0, 0.0) for t in range(100)]
    assert held.index(Level.OK) == S.recovery_seconds


def test_an_alert_ends_where_it_stands_once_nothing_grows():
    machine = Hysteresis(S)
    step(machine, 0, Level.CRITICAL, 0.08)
    assert step(machine, S.still_seconds - 1, Level.OK, 0.08) == Level.CRITICAL
    assert step(machine, S.still_seconds, Level.OK, 0.08) == Level.WARNING
    assert step(machine, 2 * S.still_seconds + 1, Level.OK, 0.08) == Level.OK


def test_with_rare_samples_an_alert_needs_several_of_them_to_end():
    machine = Hysteresis(S, interval=30.0)
    assert step(machine, 0, Level.WARNING, 0.2) == Level.WARNING
    held = [step(machine, 30 * i, Level.OK, 0.6) for i in range(1, 13)]
    assert held.count(Level.WARNING) == 9


def test_headroom_counts_swap_driver_reserve_and_group_cache():
    ram = ram_room(Observation(t=0, ram=RamState(100, 40), swap=SwapState(50, 20)))
    assert (ram.headroom, ram.capacity) == (60, 150)
    card = gpu_room(GpuSample(0, "u", "c", 1000, 700, reserved_bytes=50), wsl=False)
    assert (card.headroom, card.capacity) == (250, 950)
    group = cgroup_room(CgroupState("/a", 100, 90, inactive_file=20, active_file=10, swap_limit=20, swap_current=5), 10)
    assert (group.headroom, group.capacity) == (50, 120)


def test_a_card_that_tells_neither_use_nor_room_is_no_resource():
    assert gpu_room(GpuSample(0, "u", "c", 1000), wsl=False) is None
    assert gpu_room(GpuSample(0, "u", "c", None, 5), wsl=False) is None
    assert gpu_room(GpuSample(0, "u", "c", 1000, free_bytes=400), wsl=False).headroom == 400


def test_pressure_is_time_lost_or_an_estimate_if_psi_is_missing():
    measured, estimated = PressureMeter(), PressureMeter()
    for i in range(20):
        a = measured.push(Observation(t=float(i), psi={"memory": PsiState(full_total_us=300_000 * i)}))
        b = estimated.push(Observation(t=float(i), vm=VmState(alloc_stalls_total=80 * i, major_faults_total=20 * i)))
    assert a.full == pytest.approx(0.3)
    assert 0.2 < b.full < 0.5


def test_only_evicting_the_working_set_counts_as_pressure():
    def full(refaults):
        meter = PressureMeter()
        for i in range(20):
            found = meter.push(
                Observation(t=float(i), vm=VmState(refault_pages_total=refaults * i, steal_pages_total=9000 * i))
            )
        return found.full

    assert full(5000) >= S.full_warning
    assert full(100) == 0.0


def test_sizes_and_times_read_like_people_write_them():
    assert [size(n * MIB) for n in (0.5, 310, 3174, 24576)] == ["512 KiB", "310 MiB", "3.1 GiB", "24 GiB"]
    assert [ENGLISH.duration(s) for s in (0.2, 45, 240, 7300)] == ["1 s", "45 s", "4 min", "2 h"]


def test_a_headline_says_what_when_who_and_how_much_is_left():
    forecast = Forecast(
        "ram",
        Level.WARNING,
        round(3.1 * 1024 * MIB),
        24 * 1024 * MIB,
        rate_bytes_per_second=310 * MIB / 60,
        eta_early_seconds=120,
        eta_seconds=240,
        eta_late_seconds=420,
        who="python train.py (pid 4121)",
    )
    assert str(headline(forecast)) == (
        "RAM full in about 4 min (2-7): python train.py (pid 4121) +310 MiB/min, 3.1 of 24 GiB left"
    )
