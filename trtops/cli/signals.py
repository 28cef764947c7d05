"""Signals that interrupt a command, and its exit codes then."""

import signal

# The shell's codes for a command that was ended by SIGINT, and by SIGPIPE.
INTERRUPTED, UNREAD = 130, 141
INTERRUPTING = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))  # Windows has no SIGHUP
# The number under which the supervisor forwards these signals. Python handles the lowest pending number first.
FORWARDED = getattr(signal, "SIGRTMIN", signal.SIGTERM)
