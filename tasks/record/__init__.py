"""What a run leaves: statement, model, files, and its place in MLflow. Here: the names of its tags
there.
"""

OURS = "dpflows"
OWNER = "dpflows.owner"
MODEL = "dpflows.model"
AUDIT = "dpflows.audit"
ENTRY = "dpflows.ledger_entry"
