"""Commands: functions that read options and return the work, imported only when one is needed."""
