"""Runs: what the store remembers, listed, compared and re-evaluated."""
