"""The tracking store: the contract (``base``) and its implementations (``memory``, ``mlflow``, ``offline``)."""
