"""Isolation: faults in what a back end fuses, found by keeping parts of a model apart from the rest."""
