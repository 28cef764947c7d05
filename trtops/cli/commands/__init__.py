"""Commands: functions from options to work, imported only when needed."""
