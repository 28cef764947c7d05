"""The servers of a team on one machine, without containers: Prefect, MLflow and workers.

``trtops team up`` (``make up``) starts what is not running yet, ``down`` ends it, ``status`` reports it. The servers
listen on the loopback interface only. Everything is in the folder ``<store>/team``: the settings (``team.json``),
the passwords, the logs, and the data of both servers. Neither Prefect nor MLflow is imported here: they are started as
programs.
"""
