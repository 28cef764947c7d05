"""Runs for people: the description on MLflow's page, and a report, a self-contained HTML file.

An op describes its result as a :class:`~trtops.reports.document.Document`; the rest of a report is read from the run
(:mod:`trtops.reports.sections`). Names of tensors, models and runs are not trusted: templates escape them, and the
policy of the page allows no other script and fetches nothing.
"""
