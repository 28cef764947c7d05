"""How tests are given to processes: one by one, but those together that share what takes seconds to make."""

from collections.abc import Callable
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController


class Together(LoadScopeScheduling):
    """Scopes as a function names them, in the order of the tests; a process that died is replaced.

    The groups of pytest-xdist have no effect with pytest 9.2. Its scheduler by scope waits for ever once a process has
    died where scopes have one test: it gives the new process one scope, and a process with one test waits for the next.
    """

    def __init__(self, config: pytest.Config, log: Any, scope_of: Callable[[str], str]) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # they are in order
        self._scope_of = scope_of

    def _split_scope(self, nodeid: str) -> str:
        return self._scope_of(nodeid)

    def _reschedule(self, node: WorkerController) -> None:
        if node.shutting_down or node not in self.registered_collections:  # the latter is about to collect its tests
            return
        while self.workqueue and self._pending_of(self.assigned_work[node]) <= 2:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()

    def remove_node(self, node: WorkerController) -> str | None:
        """Put back what a dead process had before it, less the test in which it died; give that test."""
        left = [
            (scope, [test for test, done in tests.items() if not done])
            for scope, tests in self.assigned_work.pop(node).items()
        ]
        left = [(scope, tests) for scope, tests in left if tests]
        if not left:
            return None
        died_in = left[0][1].pop(0)
        for scope, tests in reversed(left):
            if tests:
                self.workqueue[scope] = dict.fromkeys(tests, False)
                self.workqueue.move_to_end(scope, last=False)
        for other in self.nodes:
            self._reschedule(other)
        return died_in
