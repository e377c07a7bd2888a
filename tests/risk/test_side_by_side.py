"""Trainings, servers, loaders and compilers recorded by ``wslgpud record`` itself. Do not tune on them.

See tests/traces/record_side_by_side.py.
"""

from __future__ import annotations

from pathlib import Path

from tests.bench.scoring import score_engine, truth_beside
from wslgpud.risk.trace import read_trace, replay, trace_name

SIDE = Path(__file__).parents[1] / "traces" / "side"


def test_programs_side_by_side_on_a_real_card_are_judged_well():
    paths = sorted(SIDE.glob("*.jsonl.gz"))
    line = score_engine("", ((truth_beside(p), replay(trace_name(p), read_trace(p))) for p in paths))
    assert len(line.warning.leads) == 4
    # An index that doubles: flat at 54 % until the next doubling asks for more than there is.
    assert line.warning.in_time >= 3, line.warning.late
    # The first wave of six nvcc takes 71 % within seconds.
    assert set(line.warning.noisy) <= {"side-nvcc_six"}
    # Validations fill 87 % within seconds, again and again. That the next one stops there too cannot be known: earlier
    # peaks make no critical later than by a tenth of the time left. (Where users are known, it was critical before.)
    assert set(line.critical.noisy) <= {"side-validates"}
