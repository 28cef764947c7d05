"""The flows of a checkout, by subject, with their deployments: ``from flows.convert import convert``.

An installation has the same flows in :mod:`trtops.flows`. ``make deploy`` is only here.
"""
