"""The commands of ``trtops runs``."""
