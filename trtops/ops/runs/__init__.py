"""Runs: what the store remembers, listed, compared, judged again and audited."""
