"""The gate: an engine of a new release, driver, model or precision against the accepted one."""
