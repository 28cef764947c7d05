from trtops.flows import convert as convert
