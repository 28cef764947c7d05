from trtops.flows import gate_releases as gate_releases
