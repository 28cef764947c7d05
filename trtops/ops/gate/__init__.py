"""The gate: an engine made with a new release, driver, model or precision against the one that is accepted."""
