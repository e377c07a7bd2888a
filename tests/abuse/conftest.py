"""What tests of attacks share with those of the store."""

from tests.store.conftest import postgresql, server_target

__all__ = ["postgresql", "server_target"]
