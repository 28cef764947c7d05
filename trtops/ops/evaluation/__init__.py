"""Evaluating: the data, the comparison and the verdict."""
