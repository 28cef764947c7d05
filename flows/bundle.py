from trtops.flows import bundle as bundle
