"""The ``trtops`` command: parse, call one op, print, exit code.

:mod:`trtops.cli.registry` lists the commands. Options that they share are tables in :mod:`trtops.cli.groups`; those
of an op are derived from its config by :mod:`trtops.cli.configs`.
"""
