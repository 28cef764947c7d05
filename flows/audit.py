from trtops.flows import audit as audit
