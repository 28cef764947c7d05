"""The folder of a team's servers: names of its parts, its lock, and what it remembers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import filelock

from trtops import errors
from trtops.files import open_atomically
from trtops.team.config import TeamState


@dataclass(frozen=True, kw_only=True)
class TeamFolder:
    """The folder; making one touches nothing.

    Attributes:
        root: Its absolute path.
    """

    root: Path

    @classmethod
    def default(cls, store: str | Path | None = None) -> TeamFolder:
        """The folder ``team`` in a store's folder: the one given, or ``TRTOPS_HOME``, or ``./mlruns``."""
        return cls(root=Path(store or os.environ.get("TRTOPS_HOME") or "mlruns").resolve() / "team")

    @property
    def passwords(self) -> Path:
        """The file with all passwords."""
        return self.root / "passwords.ini"

    @property
    def postgres(self) -> Path:
        """The folder of the database cluster."""
        return self.root / "postgres"

    @property
    def prefect(self) -> Path:
        """Prefect's own folder (``PREFECT_HOME``)."""
        return self.root / "prefect"

    @property
    def mlflow(self) -> Path:
        """The folder of MLflow's artifacts and SQLite databases."""
        return self.root / "mlflow"

    def log(self, service: str) -> Path:
        """The log file of a process."""
        return self.root / "logs" / f"{service}.log"

    def make(self) -> None:
        """Make the folder, closed to other users but for passing through, which PostgreSQL's own user has to.

        Raises:
            ConfigError: If it cannot be made.
        """
        try:
            for folder in (self.root, self.root / "logs", self.prefect, self.mlflow):
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o700)
            self.root.chmod(0o711 if os.geteuid() == 0 else 0o700)
        except OSError as exc:
            raise errors.ConfigError(f"{exc.filename}: {exc.strerror}. Set TRTOPS_HOME to another folder.") from exc

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock for the time of a block.

        Raises:
            ConfigError: If another process holds it.
        """
        self.make()
        lock = filelock.FileLock(self.root / ".lock", blocking=False, thread_local=False)
        try:
            lock.acquire()
        except filelock.Timeout:
            raise errors.ConfigError(
                f"Another command is starting or ending the servers of {self.root}. Wait for it."
            ) from None
        try:
            yield
        finally:
            lock.release()

    def read(self) -> TeamState | None:
        """What is remembered; None before the first start.

        Raises:
            FormatError: If the file is damaged.
        """
        try:
            text = self._state.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return TeamState.from_json(text)
        except errors.FormatError as exc:
            raise errors.FormatError(
                f"{self._state} cannot be read: {exc} End the processes of {self.root} by hand and delete the file."
            ) from None

    def write(self, state: TeamState) -> None:
        """Remember."""
        with open_atomically(self._state) as file:
            file.write(state.to_json().encode())

    @property
    def _state(self) -> Path:
        return self.root / "team.json"
