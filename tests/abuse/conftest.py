"""What tests of attacks share with those of the page and of the store."""

from tests.page.conftest import stage
from tests.store.conftest import postgresql, server_target

__all__ = ["postgresql", "server_target", "stage"]
