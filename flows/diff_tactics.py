"""Find the tactic that bad builds have and good builds lack.

    result = diff_tactics(experiment="nightly")

Each flow calls an op of ``trtops``, and has all options of its config as parameters:

    diff_tactics  ops/campaign/diff_tactics.py

Deployments in ``prefect.yaml``:

    deployment        schedule   defaults
    diff-tactics-cpu  on demand
"""

from trtops.flows import diff_tactics

__all__ = ["diff_tactics"]
