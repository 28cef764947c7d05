from trtops.flows import prune_runs as prune_runs
