"""One module per command, each with ``GROUPS`` (its options), ``EXAMPLES`` and ``plan(args)``.

``plan`` turns parsed options into a :class:`~trtops.cli.jobs.Job`, which can be compared and does not touch anything
until it is run.
"""
