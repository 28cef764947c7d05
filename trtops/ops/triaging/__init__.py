"""The triage: from a bad engine to the reason, one question after the other."""
