"""Evaluation of engines: data, comparison and verdict."""
