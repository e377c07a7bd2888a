"""The commands of the pages for users, and who runs each: nobody should copy a line that nobody has tried.

Those that need nothing but a machine are typed in their order by ``tests/vm/test_readme.py``, in a
bare Debian. The others are run by the test that is named here, or cannot be run where tests run.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: pages whose commands users copy; the others explain
PAGES = (
    "README.md",
    "deploy/README.md",
    "deploy/prometheus/README.md",
    "wslgpud/store/README.md",
    "wslgpud/serve/README.md",
)
_STORY = "tests/vm/test_story.py::test_a_training_leak_is_reported_before_the_end_and_after_it"
#: command -> the test that runs it
ELSEWHERE = {
    "sudo ./deploy/install": _STORY,
    "sudo ./deploy/uninstall --purge": _STORY,
    "wslgpud wslconfig check": "tests/advise/wslconfig/test_check.py::"
    "test_check_prints_wsls_words_and_the_fix_and_ends_with_1",
    "wslgpud wslconfig preset training": "tests/advise/wslconfig/test_check.py::"
    "test_nothing_is_written_unasked_and_restore_goes_back",
    "wslgpud stress --quick": "tests/stress/test_end_to_end.py::"
    "test_a_night_starts_on_schedule_and_the_command_still_works",
    "wslgpud history ram vram --since 8h": "tests/store/test_commands.py::"
    "test_the_terminal_shows_a_picture_with_its_extremes",
    "wslgpud history vram --across sum --since 30d --step 1h --csv": "tests/store/test_commands.py::"
    "test_several_cards_become_one",
    "wslgpud history 'gpu_power_watts{gpu=0}'": "tests/store/test_commands.py::test_one_card_is_chosen_by_its_label",
    "promtool tsdb create-blocks-from openmetrics history.om /var/lib/prometheus/metrics2": "tests/store/"
    "test_commands.py::test_prometheus_itself_takes_the_history_over",
    "python -m deploy.prometheus.generate --grafana https://grafana.example"
    " --daemon 'https://{{ $labels.instance }}'": "tests/prometheus/"
    "test_rules.py::test_links_use_the_given_addresses_of_grafana_and_the_daemon",
    "curl -G localhost:9655/api/v1/range -d start=2026-11-21T03:00:00Z"
    " --data-urlencode 'series=wslgpud_headroom_bytes{resource=\"ram\"}'": "tests/page/test_api.py::"
    "test_a_series_is_listed_and_returned_as_recorded",
    "promtool check rules deploy/prometheus/wslgpud.rules.yml": "tests/prometheus/test_rules.py::"
    "test_promtool_has_nothing_to_say",
}
#: command -> why no test can
CANNOT = {"docker compose -f grafana/compose.yml up -d": "no Docker where tests run; the README says so"}
_FENCE = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    """Return the commands of a page in its order, each without the comment that explains it."""
    lines = [line for block in _FENCE.findall((ROOT / page).read_text()) for line in block.splitlines()]
    return [bare for line in lines if (bare := re.sub(r"(^|\s+)#.*$", "", line).strip())]


def typed() -> list[str]:
    """Return the commands that ``tests/vm/test_readme.py`` types, each once."""
    known = dict.fromkeys(command for page in PAGES for command in commands(page))
    return [command for command in known if command not in ELSEWHERE and command not in CANNOT]


if __name__ == "__main__":
    for page in PAGES:
        print(page, *commands(page), sep="\n    ")
