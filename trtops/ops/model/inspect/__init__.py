"""Inspect: what is in a file or a run. Each answer is a record for programs and text for people."""
