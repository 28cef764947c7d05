"""Audit: compare what the store says of a run, and rebuild its engine."""
