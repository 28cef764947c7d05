from trtops.flows import noise as noise
