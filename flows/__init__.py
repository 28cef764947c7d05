"""The place of deployments: what ``prefect.yaml`` registers, from this checkout.

The flows themselves are :mod:`trtops.flows`, which a wheel brings along; this package it leaves out, since other projects
have one of this name. In a checkout each flow is found here as well: ``python -m flows.convert``, ``from flows.convert import convert``.
"""

import trtops.flows
from trtops.mirror import mirrored

mirrored(__name__, trtops.flows.__name__)
