"""The commands of ``trtops surgeon``."""
