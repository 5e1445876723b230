"""The fixtures of the flow tests, for comparisons."""

from tests.flows.conftest import clean_environment, home, server, small

__all__ = ["clean_environment", "home", "server", "small"]
