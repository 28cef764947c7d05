"""The operating system and its files: locks, processes, child processes, signals, limits, masking and signing."""
