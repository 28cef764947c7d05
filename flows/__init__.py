"""The flows of a checkout, by subject, with their deployments: ``from flows.convert import convert``.

An installation has the same flows in :mod:`trtops.flows`. The demo and ``make deploy`` are only here.
"""
