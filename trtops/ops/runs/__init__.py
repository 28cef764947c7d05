"""Runs: what the store remembers, listed, compared and judged again."""
