from trtops.flows import nightly as nightly
