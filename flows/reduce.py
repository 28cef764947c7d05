from trtops.flows import reduce as reduce
