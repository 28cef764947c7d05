"""The commands of ``trtops template``."""
