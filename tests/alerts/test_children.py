"""Programs the service starts for others do not get the service's own protection."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: To lower one's score takes a privilege that even root lacks in a container. So the daemon reads from a file
#: that it is protected, and its score is raised: what a child ends up with shows whether it was reset.
CODE = """
from pathlib import Path
from wslgpud import host
from wslgpud.alerts.channels import DeliveryError
from wslgpud.alerts.channels.programs import CommandChannel

mine = Path("/proc/self/oom_score_adj")
mine.write_text("200")
host._SCORE = {said!r}
shell = "cat /proc/self/oom_score_adj > {out}; cat >> {out}"
CommandChannel(["/bin/sh", "-c", shell], 180).send({{"it's": "me"}})
print(host.Host().run(["cat", "/proc/self/oom_score_adj"], 180).strip(), mine.read_text().strip())
try:
    CommandChannel(["/no/such/program"], 30).send({{}})
except DeliveryError as error:
    print(error)
"""


@pytest.mark.parametrize(("ours", "childs"), [("-500", "0"), ("0", "200")])
def test_a_program_of_the_users_may_be_killed_like_any_other(tmp_path: Path, ours: str, childs: str) -> None:
    """``OOMScoreAdjust=-500`` of the unit is inherited by every child that does not reset it."""
    (tmp_path / "score").write_text(ours)
    code = CODE.format(said=str(tmp_path / "score"), out=tmp_path / "out")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout.splitlines() == [f"{childs} 200", "cannot start /no/such/program: No such file or directory"], (
        done.stderr
    )
    assert (tmp_path / "out").read_text() == childs + '\n{"it\'s": "me"}'
