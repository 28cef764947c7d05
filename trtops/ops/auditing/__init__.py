"""Audit: what the memory holds held against itself and built again; and what of it may be dropped."""
