from trtops.flows import precision as precision
