"""A PostgreSQL cluster of the team's own: made once, reached through a socket that only its user may open.

No password is needed: PostgreSQL asks the system who is at the other end of the socket, and lets in the role of the same
name. As root it refuses to run; it runs as ``postgres`` or ``nobody`` then, and root is a role of its own in it.
"""

from __future__ import annotations

import contextlib
import getpass
import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from trtops import errors
from trtops.record import digest
from trtops.team.processes import as_user

DATABASES = ("prefect", "mlflow", "mlflow_auth")

_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin", "/opt/homebrew/opt/postgresql*/bin")
_SOCKET_PATH_BYTES = 107  # of sockaddr_un.sun_path on Linux, without the final zero
_PROGRAMS = ("postgres", "initdb", "pg_isready", "psql", "createdb")


@dataclass(frozen=True, kw_only=True)
class Postgres:
    """A cluster and the programs that fit it.

    Attributes:
        programs: The folder of PostgreSQL's programs.
        folder: The cluster's own folder.
        user: Who the server runs as, if not as the caller.
    """

    programs: Path
    folder: Path
    user: str | None

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.folder / "data"

    @property
    def socket_folder(self) -> Path:
        """Where the socket is: in the cluster's folder, or in a short one where that path is too long for a socket."""
        longest = f"{self.folder}/.s.PGSQL.5432"
        if len(longest.encode()) <= _SOCKET_PATH_BYTES:
            return self.folder
        return Path(tempfile.gettempdir()) / f"trtops-{os.geteuid()}-{digest(str(self.folder))[:12]}"

    def command(self) -> list[str]:
        """The server's command line."""
        return [
            str(self.programs / "postgres"),
            *("-D", str(self.data), "-k", str(self.socket_folder)),
            *("-c", "listen_addresses=", "-c", "unix_socket_permissions=0700"),
        ]

    def url(self, driver: str, database: str) -> str:
        """SQLAlchemy's address of a database."""
        return f"postgresql+{driver}://{quote(getpass.getuser())}@/{database}?host={quote(str(self.socket_folder))}"

    def make(self) -> None:
        """Make folders and cluster, where they are missing.

        Raises:
            ConfigError: If they cannot be made, or are another user's.
        """
        for folder in (self.folder, self.socket_folder):
            self._make_private(folder)
        if not (self.data / "PG_VERSION").exists():
            self._run("initdb", "-D", str(self.data), "-U", getpass.getuser(), *_INITDB, user=self.user)

    def _make_private(self, folder: Path) -> None:
        """Make a folder that only the server's user may look into; one that is there must be theirs already."""
        owner = os.geteuid() if self.user is None else pwd.getpwnam(self.user).pw_uid
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            if self.user is not None:
                shutil.chown(folder, owner, pwd.getpwnam(self.user).pw_gid)
        there = folder.lstat()
        if not stat.S_ISDIR(there.st_mode) or there.st_uid != owner or there.st_mode & 0o077:
            raise errors.ConfigError(
                f"{folder} must be a folder of {self.user or getpass.getuser()} alone (mode 700); it is not. Delete it if it "
                "is not PostgreSQL's, or start the servers as the user who made it."
            )

    def answers(self) -> bool:
        """Whether the server takes connections."""
        return self._call("pg_isready", "-q", "-h", str(self.socket_folder)).returncode == 0

    def make_databases(self) -> None:
        """Make the databases that are missing.

        Raises:
            ConfigError: If PostgreSQL does not.
        """
        there = self._run("psql", *self._access(), "-d", "postgres", "-AtX", "-c", "SELECT datname FROM pg_database")
        for name in set(DATABASES) - set(there.split()):
            self._run("createdb", *self._access(), name)

    def _access(self) -> tuple[str, ...]:
        return "-h", str(self.socket_folder), "-U", getpass.getuser(), "-w"

    def _call(self, program: str, *arguments: str, user: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.programs / program), *arguments],
            env={name: value for name, value in os.environ.items() if not name.startswith("PG")},
            cwd="/",
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            **as_user(user),
        )

    def _run(self, program: str, *arguments: str, user: str | None = None) -> str:
        done = self._call(program, *arguments, user=user)
        if done.returncode:
            raise errors.ConfigError(
                f"PostgreSQL: {program} ended with {done.returncode}: {done.stderr.strip()[-800:]}"
            )
        return done.stdout


_INITDB = ("--auth=peer", "--encoding=UTF8", "--no-locale")


def find_postgres(folder: Path) -> Postgres:
    """PostgreSQL as it is installed, for a cluster in a folder: its newest release, or the one that made the cluster.

    Raises:
        BackendUnavailableError: If it cannot be used here; the message says why, and what to do.
    """
    if importlib.util.find_spec("psycopg") is None:
        raise errors.BackendUnavailableError("PostgreSQL needs psycopg. Install it: pip install 'trtops[team]'")
    programs = _program_folders()
    if not programs:
        raise errors.BackendUnavailableError(
            "PostgreSQL is not installed. Install it (Debian: apt install postgresql; its own service is not needed)."
        )
    release = max(programs)
    if (folder / "data").exists():
        release = _release_of(folder)
        if release not in programs:
            raise errors.BackendUnavailableError(
                f"The cluster in {folder} was made by PostgreSQL {release}; installed is {max(programs)}. Install "
                f"{release} beside it, or see trtops/team/servers.md on upgrades."
            )
    return Postgres(programs=programs[release], folder=folder, user=_server_user(folder))


def _program_folders() -> dict[int, Path]:
    """Folders with PostgreSQL's programs, by major release."""
    folders = [Path(place) for pattern in _PLACES for place in sorted(Path("/").glob(pattern.lstrip("/")))]
    if (on_path := shutil.which("postgres")) is not None:
        folders.append(Path(on_path).resolve().parent)
    found: dict[int, Path] = {}
    for folder in folders:
        if all((folder / program).exists() for program in _PROGRAMS):
            said = subprocess.run(
                [folder / "postgres", "--version"], capture_output=True, text=True, check=False
            ).stdout
            if release := re.search(r"\) (\d+)", said):
                found.setdefault(int(release[1]), folder)
    return found


def _release_of(folder: Path) -> int:
    try:
        return int((folder / "data" / "PG_VERSION").read_text())
    except (OSError, ValueError):
        raise errors.BackendUnavailableError(
            f"{folder}/data is no PostgreSQL cluster, or was made half-way. Delete it if it was never used."
        ) from None


def _server_user(folder: Path) -> str | None:
    """Who the server runs as: None for the caller; somebody else if that is root.

    Raises:
        BackendUnavailableError: If that user cannot get into the folder.
    """
    if os.geteuid() != 0:
        return None
    users = {entry.pw_name for entry in pwd.getpwall()}
    user = next((name for name in ("postgres", "nobody") if name in users), None)
    if user is None:
        raise errors.BackendUnavailableError(
            "PostgreSQL does not run as root, and there is no user postgres or nobody."
        )
    for parent in (*reversed(folder.parents),):
        if _cannot_enter(parent, user):
            raise errors.BackendUnavailableError(
                f"PostgreSQL does not run as root but as {user}, who cannot get into {parent}. Start the servers as "
                "another user, set TRTOPS_HOME to a folder that others may pass through, or use --database sqlite."
            )
    return user


def _cannot_enter(folder: Path, user: str) -> bool:
    done = subprocess.run(["test", "-x", str(folder)], check=False, **as_user(user))
    return folder.exists() and done.returncode != 0
