"""Verbs that run and compare models, engines and saved results."""
