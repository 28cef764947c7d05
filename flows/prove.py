from trtops.flows import prove as prove
