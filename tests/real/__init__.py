"""Real architectures made by their exporters, and a table of what each command makes of them: `make zoo`."""
