from trtops.flows import compare as compare
