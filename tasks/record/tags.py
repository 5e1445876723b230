"""Names of the tags that a run of ours carries in MLflow."""

OURS = "dpflows"
OWNER = "dpflows.owner"
MODEL = "dpflows.model"
AUDIT = "dpflows.audit"
ENTRY = "dpflows.ledger_entry"
