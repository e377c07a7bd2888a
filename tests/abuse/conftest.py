"""A stage for attacks on the server alone."""

from tests.page.conftest import stage

__all__ = ["stage"]
