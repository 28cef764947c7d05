"""Audit: compare the stored facts of a run, and rebuild its engine. Retention: delete engines of old runs."""
