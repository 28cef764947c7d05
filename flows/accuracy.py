from trtops.flows import accuracy as accuracy
