from trtops.flows import reap as reap
