from trtops.flows import calibrate as calibrate
