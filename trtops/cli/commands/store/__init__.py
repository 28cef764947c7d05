"""The commands of ``trtops store``."""
