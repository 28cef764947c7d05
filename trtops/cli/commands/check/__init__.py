"""The commands of ``trtops check``."""
