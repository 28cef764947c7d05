"""The commands of ``trtops inspect``."""
