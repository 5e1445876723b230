"""Charts, curves and pages from plain numbers; nothing here knows a run."""
