"""Many runs side by side: their cells, statistics, figures, tables and the page."""
