"""Starting and ending processes, and their passwords, with small programs instead of servers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.team.conftest import eventually
from trtops import errors
from trtops.cli.main import main
from trtops.team import access, servers
from trtops.team.access import Passwords, TeamState, write_state
from trtops.team.servers import Service
from trtops.tracking.mlflow.installed import read_credentials

CONFIG: dict[str, Any] = {"prefect_port": 0, "mlflow_port": 0, "gpu": False}
SLEEP = "import time; print('up', flush=True); time.sleep(600)"


def service(name: str, program: str, answers: object = lambda: True, port: int | None = None) -> Service:
    return Service(
        name=name,
        command=[sys.executable, "-c", program],
        environment=dict(os.environ),
        address=f"the {name}",
        answers=answers,  # type: ignore[arg-type]
        port=port,
    )


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[list[list[Service]]]:
    """The programs to start: put them here."""
    made: list[list[Service]] = []
    monkeypatch.setattr(servers, "stages", lambda *_: made)
    monkeypatch.setattr(servers, "_STOP_SECONDS", 5.0)
    monkeypatch.setattr(servers, "_KILL_SECONDS", 0.3)
    yield made
    servers.down(folder)


def pid_of(folder: Path, name: str) -> int:
    process = servers.main_process(folder, name)
    assert process is not None
    return process.pid


def log_of(folder: Path, name: str) -> str:
    return file.read_text() if (file := folder / "logs" / f"{name}.log").exists() else ""


def test_dying_service_is_reported_without_passwords(folder, stages):
    password = Passwords.ensure(folder).mlflow_password
    dying = service("second", f"import sys; sys.exit('no {password} here')", lambda: False)
    stages += [[service("first", SLEEP)], [dying]]

    with pytest.raises(errors.ConfigError) as raised:
        servers.up(folder, **CONFIG)

    assert str(raised.value).startswith("second ended as soon as it was started. The end of")
    assert str(raised.value).endswith("no *** here")
    assert {each.state for each in servers.status(folder)} == {"down"}


def test_silent_service_is_ended_and_others_stay(folder, stages):
    stages += [[service("first", SLEEP)]]
    servers.up(folder, **CONFIG)
    stages += [[service("second", SLEEP, lambda: False)]]

    with pytest.raises(errors.ConfigError, match="second did not answer within 0 s"):
        servers.up(folder, wait_seconds=0.4)

    assert [each.state for each in servers.status(folder)] == ["up", "down"]


def test_dead_service_is_restarted_and_its_children_ended(folder, stages):
    child = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"
    stages += [[service("first", SLEEP), service("second", f"{child}; {SLEEP}")]]
    servers.up(folder, **CONFIG)
    second = pid_of(folder, "second")
    eventually(lambda: "up" in log_of(folder, "second"))
    assert os.getsid(second) == second  # Ctrl-C in the terminal does not reach it
    os.kill(second, signal.SIGKILL)
    eventually(lambda: servers.main_process(folder, "second") is None)

    dead = servers.status(folder)
    assert [each.state for each in dead] == ["up", "dead"] and dead[1].text.endswith("\nup")
    [left] = servers.all_processes(folder, "second")

    lines: list[str] = []
    again = servers.up(folder, progress=lines.append)
    assert [each.state for each in again] == ["up", "up"]
    assert lines == ["first is up already.", "Starting second ..."]
    assert left.pid not in [process.pid for process in servers.all_processes(folder, "second")]


def test_deaf_service_and_its_children_are_killed(folder, stages):
    deaf = "import signal, subprocess; signal.signal(15, signal.SIG_IGN); subprocess.Popen(['sleep', '600'])"
    stages += [[service("first", f"{deaf}; {SLEEP}")]]
    servers._STOP_SECONDS = 0.3  # type: ignore[attr-defined] - the fixture restores it
    servers.up(folder, **CONFIG)
    eventually(lambda: "up" in log_of(folder, "first"))
    assert len(servers.all_processes(folder, "first")) == 2

    servers.down(folder)

    assert servers.all_processes(folder, "first") == []


def test_flow_runs_end_before_their_worker(folder, stages):
    program = """
import signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import signal, sys, time
def end(*_):
    print("child ends", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(600)
'''], start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: (print("parent ends", flush=True), child.kill(), sys.exit()))
child.wait()
time.sleep(600)
"""
    stages += [[service("worker-cpu", program)]]
    servers.up(folder, **CONFIG)
    eventually(lambda: "ready" in log_of(folder, "worker-cpu"))

    servers.down(folder)

    assert log_of(folder, "worker-cpu").splitlines()[-3:] == ["ready", "child ends", "parent ends"]


def test_processes_of_others_are_never_ended(folder, stages):
    stages += [[service("first", SLEEP)]]
    servers.up(folder, **CONFIG)
    file = folder / "logs" / "first.pid"
    ours = file.read_text()
    with subprocess.Popen(["sleep", "600"]) as bystander:
        file.write_text(str(bystander.pid))
        assert servers.main_process(folder, "first") is None
        servers._stop(folder, "another")
        assert bystander.poll() is None
        bystander.kill()
    file.write_text(ours)
    assert pid_of(folder, "first") == int(ours)


def test_taken_port_is_named(folder, stages):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        stages += [[service("mlflow", SLEEP, port=port)]]
        with pytest.raises(errors.ConfigError, match=rf"Port {port} for mlflow cannot be used.*--mlflow-port N"):
            servers.up(folder, **CONFIG)


def test_concurrent_commands_are_refused(folder):
    with FileLock(folder / ".lock"):
        code = "import sys; from pathlib import Path; from trtops.team import servers; servers.up(Path(sys.argv[1]))"
        done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert "Another command is starting or ending" in done.stderr


def test_postgresql_addresses_name_driver_and_database(folder):
    url = "postgresql://me@h:5433?host=/run/postgresql"
    state = TeamState(database=url, gpu=True)
    write_state(folder, state)

    (prefect, mlflow), workers = servers.stages(folder, state, Passwords.ensure(folder))

    address = prefect.environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"]
    assert address == "postgresql+asyncpg://me@h:5433/prefect?host=/run/postgresql"
    assert "postgresql+psycopg://me@h:5433/mlflow?host=/run/postgresql" in mlflow.command
    assert [worker.name for worker in workers] == ["worker-cpu", "worker-gpu"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"prefect_port": 65536},
        {"mlflow_port": -1},
        {"limit": 0},
        {"database": "mysql://h"},
        {"database": "postgresql://a:b@h"},
    ],
)
def test_invalid_config_is_refused(wrong):
    with pytest.raises(errors.ConfigError, match=next(iter(wrong))):
        TeamState(**wrong)


def test_passwords_are_created_once_with_mode_600(folder: Path, tmp_path: Path):
    made = Passwords.ensure(folder)
    file = folder / "passwords.ini"

    assert Passwords.ensure(folder) == made
    assert file.stat().st_mode & 0o777 == 0o600
    assert made.mlflow_password not in repr(made) and made.prefect_auth not in repr(made)
    assert made.hide(f"a {made.mlflow_password} {made.prefect_auth}") == "a *** trtops:***"
    assert read_credentials(file) == (made.mlflow_user, made.mlflow_password)
    assert Passwords.ensure(tmp_path).mlflow_password != made.mlflow_password

    file.chmod(0o640)
    with pytest.raises(errors.ConfigError, match="has mode 640"):
        Passwords.ensure(folder)
    file.chmod(0o600)
    file.write_text("[mlflow]\n")
    with pytest.raises(errors.ConfigError, match="lacks an entry"):
        Passwords.ensure(folder)


def test_shell_lines_contain_no_password(folder: Path, capsys: pytest.CaptureFixture[str]):
    found = Passwords.ensure(folder)
    with pytest.raises(errors.ConfigError, match="No servers were started"):
        access.shell_lines(folder)
    write_state(folder, TeamState(prefect_port=4201, mlflow_port=5001))
    root = str(folder.parent)

    assert main(["team", "env", "--root", root]) == 0
    lines = capsys.readouterr().out
    for server, password in (("prefect", found.prefect_auth), ("mlflow", f"admin:{found.mlflow_password}")):
        assert main(["team", "password", server, "--root", root]) == 0
        assert capsys.readouterr().out.strip() == password

    assert "export PREFECT_API_URL=http://127.0.0.1:4201/api\n" in lines
    assert "export MLFLOW_TRACKING_URI=http://127.0.0.1:5001\n" in lines
    assert f'PREFECT_API_AUTH_STRING="$(trtops team password prefect --root {root})"' in lines
    assert found.mlflow_password not in lines and found.prefect_auth not in lines


def test_variables_of_other_servers_are_removed(folder: Path, monkeypatch: pytest.MonkeyPatch):
    others = ("PREFECT_API_URL", "PREFECT_API_KEY", "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_PASSWORD")
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


def test_status_and_down_without_servers(folder: Path, capsys: pytest.CaptureFixture[str]):
    root = str(folder.parent / "none")

    assert main(["team", "status", "--root", root]) == 1
    assert f"No servers were started for {root}. Start them: trtops team up" in capsys.readouterr().out
    assert main(["team", "down", "--root", root]) == 0
    assert not Path(root).exists()

    (folder / "team.json").write_text("{")
    with pytest.raises(errors.FormatError, match=r"team\.json cannot be read.*by hand"):
        servers.status(folder)
