from trtops.flows import debug_build as debug_build
