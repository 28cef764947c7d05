"""What an outbox needs of the tracker that its runs are brought into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from trtops.tracking.location import Store
from trtops.tracking.registry import RegisteringTracker
from trtops.tracking.writer import RunWriter


class Receiver(RegisteringTracker, Protocol):
    """A tracker whose runs can be written again, as those of an outbox need it.

    Attributes:
        shown: Its address, without a password.
        store: The embedded store that it writes; None for anything else.
        context: Tags that it gives to every run: the user, the program.
    """

    shown: str
    store: Store | None
    context: Mapping[str, str]

    def create(
        self,
        experiment: str,
        name: str,
        *,
        tags: Mapping[str, str],
        parent: str | None = None,
        began: float | None = None,
        known: bool = False,
    ) -> RunWriter:
        """Make a run with exactly these tags, the local id among them.

        Args:
            experiment: As for :meth:`trtops.tracking.base.Tracker.start`.
            name: Likewise.
            tags: All of its tags.
            parent: Id of the parent run.
            began: When it began, in seconds since the epoch; now unless given.
            known: Whether a run of this local id may be there already, which is then written again.
        """
        ...

    def reopen(self, run_id: str) -> RunWriter:
        """As :meth:`trtops.tracking.base.Tracker.reopen`."""
        ...

    def rewrite(self, run_id: str) -> RunWriter:
        """Write to a run whatever its state, which is running from now on, without an error or a verdict.

        Raises:
            RunNotFoundError: If there is none with this id.
        """
        ...
