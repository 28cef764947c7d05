"""What keeps servers from starting is said in words, and leaves nothing behind; passwords are kept to one file."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.team.conftest import eventually
from trtops import errors, team
from trtops.cli.main import main
from trtops.team import access, postgres, processes, servers
from trtops.team.config import TeamConfig, TeamState
from trtops.team.folder import TeamFolder
from trtops.team.passwords import Passwords, ensure_passwords, read_passwords
from trtops.team.services import Service
from trtops.tracking import owner
from trtops.tracking.mlflow.credentials import read_credentials

SQLITE = TeamConfig(prefect_port=0, mlflow_port=0, database="sqlite", gpu=False)


def service(name: str, program: str, answers: object = lambda since: True, port: int | None = None) -> Service:
    return Service(
        name=name,
        command=[sys.executable, "-c", program],
        environment=dict(os.environ),
        folder=Path("/"),
        address=f"the {name}",
        answers=answers,  # type: ignore[arg-type]
        port=port,
    )


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch, folder: TeamFolder) -> Iterator[list[list[Service]]]:
    """Small programs in the place of servers: put them here."""
    made: list[list[Service]] = []
    monkeypatch.setattr(servers, "stages", lambda *_: made)
    yield made
    team.down(folder=folder)


SLEEP = "import time; print('up', flush=True); time.sleep(600)"


def test_one_that_dies_is_told_of_with_the_end_of_its_log_and_without_passwords(folder, stages):
    folder.make()
    password = ensure_passwords(folder.passwords).mlflow_password
    stages += [[service("first", SLEEP)], [service("second", f"import sys; sys.exit('no {password} here')")]]
    stages[1][0].__dict__["answers"] = lambda since: False

    with pytest.raises(errors.ConfigError) as raised:
        team.up(SQLITE, folder=folder)

    assert str(raised.value).startswith("second ended as soon as it was started. The end of")
    assert str(raised.value).endswith("no *** here")
    assert {s.state for s in team.status(folder).services} == {"down"}
    state = folder.read()
    assert state is not None and state.services == ()


def test_one_that_never_answers_is_given_up_and_what_was_up_before_stays(folder, stages):
    stages += [[service("first", SLEEP)]]
    team.up(SQLITE, folder=folder)
    stages += [[service("second", SLEEP, lambda since: False)]]

    with pytest.raises(errors.ConfigError, match="second did not answer within 0 s"):
        team.up(TeamConfig(wait_seconds=0.4), folder=folder)

    assert [s.state for s in team.status(folder).services] == ["up", "down"]


def test_one_that_died_is_told_of_and_started_again_without_the_others(folder, stages):
    stages += [[service("first", SLEEP), service("second", f"print('last words', flush=True); {SLEEP}")]]
    team.up(SQLITE, folder=folder)
    before = folder.read()
    assert before is not None
    second = before.services[1]
    eventually(lambda: "up" in processes.last_lines(Path(second.log)))
    os.kill(second.owner.pid, signal.SIGKILL)
    eventually(lambda: not processes.is_alive(second.owner))

    dead = team.status(folder)
    assert [s.state for s in dead.services] == ["up", "dead"] and not dead.all_up
    assert "second is dead; the end of" in dead.text() and "last words" in dead.text()

    told: list[str] = []
    assert team.up(folder=folder, progress=told.append).all_up
    assert told == ["first is up already.", "Starting second ..."]


def test_a_port_that_is_taken_is_named_with_the_way_out(folder, stages):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        stages += [[service("mlflow", SLEEP, port=port)]]
        with pytest.raises(errors.ConfigError, match=rf"Port {port} for mlflow cannot be used.*--mlflow-port N"):
            team.up(SQLITE, folder=folder)


def test_two_that_start_at_once_do_not_both(folder: TeamFolder):
    with folder.locked(), pytest.raises(errors.ConfigError, match="Another command is starting or ending"):
        team.up(SQLITE, folder=folder)


def test_the_database_that_was_chosen_stays(folder, stages):
    stages += [[service("first", SLEEP)]]
    team.up(SQLITE, folder=folder)

    with pytest.raises(errors.ConfigError, match=r"are in sqlite\. For postgresql, start others in another folder"):
        team.up(TeamConfig(database="postgresql"), folder=folder)
    with pytest.raises(errors.ConfigError, match="up with another limit"):
        team.up(TeamConfig(limit=7), folder=folder)
    assert team.up(folder=folder).database == "sqlite"


def test_without_postgresql_sqlite_is_used_and_that_is_said(folder, stages, monkeypatch):
    monkeypatch.setattr(postgres, "_program_folders", dict)
    stages += [[service("first", SLEEP)]]
    told: list[str] = []

    status = team.up(TeamConfig(prefect_port=0, mlflow_port=0, gpu=False), folder=folder, progress=told.append)

    assert status.database == "sqlite"
    assert told == ["SQLite is used for all data. PostgreSQL is not installed. Install it (Debian: apt install postgresql; "
                    "its own service is not needed).", "Starting first ..."]  # fmt: skip
    with pytest.raises(errors.BackendUnavailableError, match="PostgreSQL is not installed"):
        team.up(TeamConfig(database="postgresql"), folder=TeamFolder(root=folder.root.parent / "other"))


def test_a_cluster_of_a_release_that_is_gone_is_not_touched(tmp_path: Path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "PG_VERSION").write_text("9\n")
    monkeypatch.setattr(postgres, "_program_folders", lambda: {15: Path("/usr")})

    with pytest.raises(errors.BackendUnavailableError, match="made by PostgreSQL 9; installed is 15"):
        postgres.find_postgres(tmp_path)


def test_a_socket_s_path_is_never_too_long(tmp_path: Path):
    short = postgres.Postgres(programs=Path("/p"), folder=Path("/a"), user=None)
    long = postgres.Postgres(programs=Path("/p"), folder=tmp_path / ("x" * 100), user=None)

    assert short.socket_folder == Path("/a")
    assert len(f"{long.socket_folder}/.s.PGSQL.5432") < 100
    assert long.socket_folder != postgres.Postgres(programs=Path("/p"), folder=tmp_path, user=None).socket_folder


def test_nonsense_is_refused():
    for wrong in ({"prefect_port": 65536}, {"mlflow_port": -1}, {"limit": 0}):
        with pytest.raises(errors.ConfigError, match=next(iter(wrong))):
            TeamConfig(**wrong)


def test_passwords_are_made_once_for_their_owner_alone(tmp_path: Path):
    file = tmp_path / "passwords.ini"

    made = ensure_passwords(file)

    assert ensure_passwords(file) == made == read_passwords(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert made.mlflow_password not in repr(made) and made.prefect_auth not in repr(made)
    assert made.hide(f"a {made.mlflow_password} {made.prefect_auth}") == "a *** ***"
    assert read_credentials(file) == (made.mlflow_user, made.mlflow_password)
    assert ensure_passwords(tmp_path / "other.ini").mlflow_password != made.mlflow_password


def test_passwords_that_others_may_read_are_refused(tmp_path: Path):
    file = tmp_path / "passwords.ini"
    ensure_passwords(file)
    file.chmod(0o640)

    for read in (read_passwords, read_credentials):
        with pytest.raises(errors.TrtopsError, match=r"has mode 640|mode is 640"):
            read(file)
    file.chmod(0o600)
    file.write_text("[mlflow]\n")
    for read in (read_passwords, read_credentials):
        with pytest.raises(errors.TrtopsError, match=r"missing|lacks"):
            read(file)
    with pytest.raises(errors.ConfigError, match="No such file"):
        read_passwords(tmp_path / "none")


def test_what_a_shell_is_given_has_no_password_in_it(folder: TeamFolder, capsys: pytest.CaptureFixture[str]):
    folder.make()
    found = ensure_passwords(folder.passwords)
    with pytest.raises(errors.ConfigError, match="No servers were started"):
        access.shell_lines(folder)
    folder.write(TeamState(prefect_port=4201, mlflow_port=5001, database="sqlite", limit=2, gpu=False))
    root = str(folder.root.parent)

    assert main(["team", "env", "--root", root]) == 0
    lines = capsys.readouterr().out
    assert main(["team", "password", "prefect", "--root", root]) == 0
    assert capsys.readouterr().out.strip() == found.prefect_auth
    assert main(["team", "password", "mlflow", "--root", root]) == 0
    assert capsys.readouterr().out.strip() == f"admin:{found.mlflow_password}"

    assert "export PREFECT_API_URL=http://127.0.0.1:4201/api\n" in lines
    assert "export MLFLOW_TRACKING_URI=http://127.0.0.1:5001\n" in lines
    assert f'PREFECT_API_AUTH_STRING="$(trtops team password prefect --root {root})"' in lines
    assert not [secret for secret in (found.mlflow_password, found.prefect_auth) if secret in lines]


def test_other_servers_of_the_environment_lead_nobody_astray(folder: TeamFolder, monkeypatch: pytest.MonkeyPatch):
    others = (
        "PREFECT_API_URL",
        "PREFECT_API_KEY",
        "MLFLOW_TRACKING_URI",
        "MLFLOW_TRACKING_PASSWORD",
        "PGHOST",
        "PGPASSWORD",
    )
    for name in others:
        monkeypatch.setenv(name, "elsewhere")
    monkeypatch.setenv("http_proxy", "http://proxy:1")
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.setenv("PREFECT_SERVER_LOGGING_LEVEL", "DEBUG")

    found = access.service_environment(folder, {})

    assert not set(others) & set(found)
    assert found["NO_PROXY"] == "example.org,127.0.0.1,localhost"
    assert found["PREFECT_SERVER_LOGGING_LEVEL"] == "DEBUG"
    assert found["PREFECT_RESULTS_DEFAULT_SERIALIZER"] == "json"


def test_status_and_down_of_nothing_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    root = str(tmp_path / "none")

    assert main(["team", "status", "--root", root]) == 1
    assert f"No servers were started for {root}. Start them: trtops team up" in capsys.readouterr().out
    assert main(["team", "down", "--root", root]) == 0
    assert not Path(root).exists()


def test_a_state_that_cannot_be_read_is_not_guessed(folder: TeamFolder):
    folder.make()
    (folder.root / "team.json").write_text("{")

    with pytest.raises(errors.FormatError, match=r"team\.json cannot be read.*by hand"):
        team.status(folder)


def test_all_of_status_survives_json(folder, stages):
    stages += [[service("first", SLEEP)]]

    status = team.up(SQLITE, folder=folder)

    assert team.TeamStatus.from_json(status.to_json()) == status
    assert status.services[0].pid is not None and status.all_up
    assert isinstance(owner.of(status.services[0].pid), owner.Owner)
    assert processes.last_lines(folder.log("first")) in ("", "up")
    assert isinstance(ensure_passwords(folder.passwords), Passwords)
