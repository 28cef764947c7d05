"""Reproducer bundles: a run's verdict, repeated by a stranger without trtops."""
