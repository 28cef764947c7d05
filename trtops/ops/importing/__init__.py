"""Results of other tools as runs."""
