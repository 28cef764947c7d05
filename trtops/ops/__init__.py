"""The verbs: one file each, with one frozen config and one frozen result. Flows, commands and scripts call the same."""
