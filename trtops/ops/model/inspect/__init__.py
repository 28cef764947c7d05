"""Inspect: the contents of a file or a run, as a record for programs and as text."""
