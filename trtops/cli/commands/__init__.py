"""One module per command, each with ``GROUPS`` (its options), ``EXAMPLES``, ``plan(args)`` and ``execute(plan)``.

``plan`` turns parsed options into a value that can be compared (a config, or a script of loader calls) and touches nothing;
``execute`` carries it out and returns the exit code.
"""
