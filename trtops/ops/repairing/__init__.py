"""Repair: the fastest engine that passes."""
