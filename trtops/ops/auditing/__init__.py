"""Audit: compare what the store says of a run, rebuild its engine, and drop large artifacts of old runs."""
