"""Audit: compare what the store says of a run, and rebuild its engine. Retention: delete engines of old runs."""
