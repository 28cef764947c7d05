"""The memory: a contract for trackers and runs (``base``), and the trackers that keep it (``memory``, ``mlflow``)."""
