"""Accept engines, check the stored runs, and tidy the store.

    result = gate(["model.onnx"])

Each flow calls an op of ``trtops``, and has all options of its config as parameters:

    audit       ops/auditing/op.py
    gate        ops/gate/op.py
    promote     ops/registry/promote.py
    prune_runs  ops/auditing/prune.py
    reap        tracking/check.py, and the flow runs of killed processes

Deployments in ``prefect.yaml``:

    deployment      schedule             defaults
    audit-cpu       cron 0 3 * * 0       sample: 50
    audit-gpu       cron 0 3 * * 0, off  backend: tensorrt; sample: 20
    gate-releases   cron 0 4 * * *       releases: [examples/09-gate/onnxruntime-1.31.txt,
                                         examples/09-gate/onnxruntime-1.32.txt]; minutes: 10
    gate-cpu        on demand
    gate-gpu        on demand            backend: tensorrt
    promote-cpu     on demand
    promote-gpu     on demand
    prune-runs-cpu  cron 0 5 * * 0       older_than_days: 90; apply: false
    reap-cpu        every 900 s
"""

from trtops.flows import audit, gate, promote, prune_runs, reap

__all__ = ["audit", "gate", "promote", "prune_runs", "reap"]
