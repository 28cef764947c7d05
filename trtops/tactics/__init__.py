"""Tactics: the record of a builder's choices, and the statistics over many records.

To be read in this order: ``record`` (the choices of one build), ``table`` (those of many builds), ``model`` (the
probabilities of explanations), ``diff`` and ``findings`` (builds as a builder makes them), ``bisection`` (builds that
mix a good and a bad one), ``denied`` (what later builds must not choose).
"""
