"""The flows of :mod:`trtops.flows` as modules of a checkout: ``from flows.convert import convert``.

The demo and the deployments of ``prefect.yaml`` are only here.
"""
