"""Runs as people read them: the description on MLflow's page, and a report, one HTML file that needs nothing else.

An op says what came of it in a :class:`~trtops.reports.document.Document`; what else a report shows is read from the run
(:mod:`trtops.reports.sight`). Names of tensors, models and runs are shown, never believed: templates escape them, and the
page's own policy lets no other script run.
"""
