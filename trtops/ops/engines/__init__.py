"""Engines: made, calibrated, measured, and kept off what was convicted."""
