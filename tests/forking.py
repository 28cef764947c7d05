"""Forked children that leave this process' exit handlers alone."""

import os
import sys
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.context import ForkProcess
from typing import Any


class ForkedProcess(ForkProcess):
    """A forked process that ends when its target returns: with 0, or with 1 and the traceback if it raised.

    Other tests of the same process may have started Prefect, whose exit handlers fail in a child and change its exit
    code after the work is done.
    """

    def run(self) -> None:
        code = 1
        try:
            super().run()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def run_in_children(target: Callable[[Any], object], arguments: Iterable[Any]) -> None:
    """Call a function in one forked child per argument, all at once, and wait; fails if a call failed."""
    children = [ForkedProcess(target=target, args=(argument,)) for argument in arguments]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert {child.exitcode for child in children} == {0}
