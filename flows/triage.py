from trtops.flows import triage as triage
