"""Tactics: the record of what a builder chose, and the statistics over many records."""
