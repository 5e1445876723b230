"""Flows and commands. Whoever imports one, alone or before Prefect and MLflow, gets them silent and
patient.
"""

import os

from tasks.home import PATIENCE, silence

silence()
for name, value in PATIENCE.items():
    os.environ.setdefault(name, value)
