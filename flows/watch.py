from trtops.flows import watch as watch
