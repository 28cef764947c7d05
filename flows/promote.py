from trtops.flows import promote as promote
