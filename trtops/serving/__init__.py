"""After the engine: certificates, and what serves an engine. Imports nothing above ``backend``."""
