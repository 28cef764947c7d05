"""The flows by the names that they have in a checkout: ``from flows.convert import convert``. The wheel has them in ``trtops.flows``.

The demo and the deployments of ``prefect.yaml`` are only here.
"""
