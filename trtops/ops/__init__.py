"""The ops: functions from a frozen config to a frozen result, for Python, the command line and flows.

Arguments that ops share: ``tracker`` is the tracking store, :func:`trtops.default_tracker` unless given (searches that
may run without a record keep none then); ``experiment`` is the experiment to log to, by default the name of the model;
``tags`` are further tags of the run; ``parent`` is the id of a run that it belongs to; ``progress`` is called after
each item.
"""

from trtops.lazy import exports

# Names, listed in `__init__.pyi`, are imported on first use, so that each op loads only its own dependencies.
__getattr__, __dir__ = exports(__name__)
