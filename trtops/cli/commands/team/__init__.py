"""The commands of ``trtops team``."""
