"""The commands of ``trtops plugin``."""
