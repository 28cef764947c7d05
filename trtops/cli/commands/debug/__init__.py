"""The commands of ``trtops debug``."""
