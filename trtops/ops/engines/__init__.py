"""Ops for building engines: convert, calibrate, sensitivity, model lists, deny-list."""
