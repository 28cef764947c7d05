from trtops.flows import gate as gate
