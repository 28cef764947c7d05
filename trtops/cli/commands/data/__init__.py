"""The commands of ``trtops data``."""
