"""Ops that build engines: convert, calibrate, sensitivity, model lists, deny-list."""
