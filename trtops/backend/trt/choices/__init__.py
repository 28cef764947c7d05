"""Tactics: recorded, replayed, and kept in timing caches."""
