"""The ``trtops`` command: parse, call one op, print, exit code.

:mod:`trtops.cli.commands` has one module per command, found by :data:`trtops.cli.registry.COMMANDS` and imported only
when it is asked for. Options that commands share are tables in :mod:`trtops.cli.groups`. Nothing here is imported by
ops, flows or back ends.
"""
