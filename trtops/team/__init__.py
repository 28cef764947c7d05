"""The servers of a team on one machine, without containers: Prefect, MLflow and workers.

``trtops team up`` (``make up``) starts what is not running yet. The servers listen on the loopback interface only, and
are started as programs. The folder ``<store>/team`` has the settings with the passwords, the logs, and all data.
"""
