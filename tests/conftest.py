"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# A busy machine takes seconds over what takes microseconds: how long an example takes is no finding.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
