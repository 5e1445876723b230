"""Flows and commands. Whoever imports one, alone or before Prefect and MLflow, gets them silent."""

from tasks.home import silence

silence()
