"""Real architectures made by their exporters, and a table of the results of each command: see ``tests/README.md``."""
