from trtops.flows import diff_tactics as diff_tactics
