"""What an engine or a network holds, as others can read it."""
