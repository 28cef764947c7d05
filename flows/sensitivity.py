from trtops.flows import sensitivity as sensitivity
