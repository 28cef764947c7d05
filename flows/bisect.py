from trtops.flows import bisect as bisect
