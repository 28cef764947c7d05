"""Inference: an engine is run."""
