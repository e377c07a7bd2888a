"""What happened in a recording, from its data: how recordings of this folder get their truths.

    python -m tests.traces.labels FILE.jsonl.gz...

gives each recording's truth its labels anew, from the samples and the events that the truth names, and prints those
that change. What counts as an event (a kill, a failed allocation) only the recorder can know.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from wslgpud.risk.headroom import BalloonedMemory, rooms
from wslgpud.risk.trace import read_trace

#: a recording without an event that climbs to within so much of its limit is tolerated: a warning of it is fair
TOLERATED_SHARE = 0.22
#: of one that climbs even closer and stops, a critical is fair, too
BRINK_SHARE = 0.03
#: just before an allocation fails, a caching allocator gives back all that it can: no sign of half a card left
LAST_SECONDS = 2.0


def label(name, observations, events):
    """Return a truth; onset is the last moment before the first event with half of the memory left."""
    shares = {}
    taken = BalloonedMemory()
    for seen in observations:
        for room in rooms(seen, {}, taken.total(seen)):
            shares.setdefault(room.resource, []).append((seen.t, 1 - room.share))
    first = min(events, key=lambda event: event["t"], default=None)
    highest = max(shares, key=lambda resource: max(share for _, share in shares[resource]))
    subject = first["resource"] if first else highest
    for event in events:
        event["onset"] = _onset(shares.get(event["resource"], []), event["t"])
    return {
        "name": name,
        "verdict": "oom" if events else "safe",
        "onset": first["onset"] if first else _onset(shares[subject], float("inf")),
        "tolerated": not events and max(share for _, share in shares[subject]) > 1 - TOLERATED_SHARE,
        "brink": not events and max(share for _, share in shares[subject]) > 1 - BRINK_SHARE,
        "events": events,
        "highest": round(max(share for _, share in shares[subject]), 3),
    }


def _onset(shares, end):
    return round(max((t for t, used in shares if used <= 0.5 and t < end - LAST_SECONDS), default=0.0), 2)


def main():
    for name in sys.argv[1:]:
        path = Path(name)
        beside = path.with_name(f"{path.name.split('.')[0]}.truth.json")
        before = json.loads(beside.read_text())
        after = before | label(before["name"], list(read_trace(path)), before["events"])
        beside.write_text(json.dumps(after) + "\n")
        labels = ("verdict", "onset", "tolerated", "brink")
        changed = {label: (before.get(label), after[label]) for label in labels if before.get(label) != after[label]}
        if changed:
            print(f"{before['name']}: {changed}")


if __name__ == "__main__":
    main()
