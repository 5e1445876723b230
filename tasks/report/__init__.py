"""Reports of one run: one self-contained page for the operator, and the figures in it."""
