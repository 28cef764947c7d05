"""Starting and ending processes, and their passwords, with small programs instead of servers."""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from filelock import FileLock
from prefect.client.schemas.actions import WorkPoolCreate

from tests.team.conftest import eventually
from trtops import errors
from trtops.cli.main import main
from trtops.team import access, servers
from trtops.team.access import TeamState, started_state
from trtops.team.servers import Service
from trtops.tracking.mlflow.installed import read_credentials

STARTED = "import time; print(\"It's started! 'x' started!\", flush=True)"
SLEEP = f"{STARTED}; time.sleep(600)"
SILENT = "import time; time.sleep(600)"


def service(name: str, program: str, **options: str) -> Service:
    """A service that is up once it has printed that it has started."""
    command = [sys.executable, "-c", program]
    return Service(name=name, command=command, environment=dict(os.environ), **{"address": f"the {name}", **options})


def write_state(folder: Path, state: TeamState) -> None:
    (folder / "team.json").write_text(state.to_json())
    (folder / "team.json").chmod(0o600)


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[list[list[Service]]]:
    """The programs to start: put them here."""
    service_stages: list[list[Service]] = []
    monkeypatch.setattr(servers, "stages", lambda *_: service_stages)
    monkeypatch.setattr(servers, "_STOP_SECONDS", 5.0)
    monkeypatch.setattr(servers, "_KILL_SECONDS", 0.3)
    yield service_stages
    servers.down(folder)


def test_failing_service_is_reported_and_others_stay(folder, stages):
    stages += [[service("first", SLEEP)]]
    servers.up(folder)
    password = started_state(folder).mlflow_password

    dying = f"import sys; sys.exit('no {password} here')"
    for program, message in ((dying, r"(?s)second ended .*:\nno \*\*\* here$"), (SILENT, "did not answer within 0 s")):
        stages[1:] = [[service("second", program)]]
        with pytest.raises(errors.ConfigError, match=message):
            servers.up(folder, wait_seconds=0.4)
        assert [status.state for status in servers.status(folder)] == ["up", "down"]


def test_dead_service_is_restarted_and_its_children_ended(folder, stages, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    child = (
        "import subprocess, tempfile; tempfile.mkdtemp(); subprocess.Popen(['sleep', '600'], start_new_session=True)"
    )
    stages += [[service("first", SLEEP), service("second", f"{child}; {SLEEP}")]]
    servers.up(folder)
    first, second = (servers.main_process(folder, name) for name in ("first", "second"))
    assert second is not None and os.getsid(second.pid) == second.pid  # Ctrl-C in the terminal does not reach it
    second.kill()
    eventually(lambda: servers.main_process(folder, "second") is None)

    dead = servers.status(folder)
    assert [status.state for status in dead] == ["up", "dead"] and dead[1].text.endswith("started!")
    [left] = servers.all_processes(folder, "second")
    [leftover] = tmp_path.glob("tmp/*/*")

    assert [status.state for status in servers.up(folder)] == ["up", "up"]
    assert servers.main_process(folder, "first") == first and left not in servers.all_processes(folder, "second")
    assert not leftover.exists()
    servers.down(folder)
    assert not [*tmp_path.glob("tmp/*")]


def test_deaf_service_and_its_children_are_killed(folder, stages):
    deaf = "import signal, subprocess; signal.signal(15, signal.SIG_IGN); subprocess.Popen(['sleep', '600'])"
    stages += [[service("first", f"{deaf}; {SLEEP}")]]
    servers._STOP_SECONDS = 0.3  # type: ignore[attr-defined] - the fixture restores it
    servers.up(folder)
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
print("'child' started!", flush=True)
time.sleep(600)
'''], start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: (print("parent ends", flush=True), child.kill(), sys.exit()))
child.wait()
time.sleep(600)
"""
    stages += [[service("worker-cpu", program)]]
    servers.up(folder)
    servers.down(folder)

    lines = (folder / "logs" / "worker-cpu.log").read_text().splitlines()
    assert lines[-3:] == ["'child' started!", "child ends", "parent ends"]


def test_processes_of_others_are_never_ended(folder, stages):
    stages += [[service("first", SLEEP)]]
    servers.up(folder)
    file = folder / "logs" / "first.pid"
    ours = file.read_text()
    with subprocess.Popen(["sleep", "600"]) as bystander:
        file.write_text(str(bystander.pid))
        assert servers.main_process(folder, "first") is None
        servers._stop(folder, "another")
        assert bystander.poll() is None
        bystander.kill()
    file.write_text(ours)
    assert servers.main_process(folder, "first") is not None


def test_taken_port_is_named(folder, stages):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        stages += [[service("mlflow", SLEEP, address=f"http://127.0.0.1:{port}", health="/health")]]
        with pytest.raises(errors.ConfigError, match=rf":{port} for mlflow cannot be used.*--mlflow-port N"):
            servers.up(folder)


def test_concurrent_commands_are_refused(folder):
    with FileLock(folder / ".lock"):
        code = "import sys; from pathlib import Path; from trtops.team import servers; servers.up(Path(sys.argv[1]))"
        done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert "Another command is starting or ending" in done.stderr


def test_server_collects_garbage_beside_its_event_loop(tmp_path):
    (tmp_path / "prefect.py").write_text("""
import gc, sys, threading, time, weakref
where, cycle = [], threading.local()
cycle.itself = cycle
weakref.finalize(cycle, lambda: where.append(threading.current_thread()))
del cycle
while not where:
    time.sleep(0.01)
print(sys.argv[1:], gc.isenabled(), where[0] is threading.main_thread())
""")
    command = [sys.executable, "-c", servers._PREFECT.replace("(20)", "(0.1)"), "server"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "['server'] False False\n", done.stderr


def test_postgresql_addresses_name_driver_and_database(folder):
    url = "postgresql://me@h:5433?host=/run/postgresql"
    state = TeamState(database=url, gpu=True)
    write_state(folder, state)

    (prefect, mlflow), workers = servers.stages(folder, state)

    address = prefect.environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"]
    assert address == "postgresql+asyncpg://me@h:5433/prefect?host=/run/postgresql"
    assert "postgresql+psycopg://me@h:5433/mlflow?host=/run/postgresql" in mlflow.command
    assert [worker.name for worker in workers] == ["worker-cpu", "worker-gpu"]


def test_invalid_config_is_refused():
    for name, values in (("prefect_port", (65536, 0)), ("mlflow_port", (-1,)), ("limit", (0,))):
        for value in values:
            with pytest.raises(errors.ConfigError, match=name):
                TeamState(**{name: value})
    for address in ("mysql://h", "postgresql://a:b@h"):
        with pytest.raises(errors.ConfigError, match="database"):
            TeamState(database=address)


def test_passwords_are_stored_with_mode_600(folder: Path, stages):
    servers.up(folder)
    state = started_state(folder)

    servers.up(folder)
    assert started_state(folder) == state != TeamState(gpu=state.gpu)
    assert state.mlflow_password not in repr(state) and state.prefect_password not in repr(state)
    assert state.hide(f"a {state.mlflow_password} {state.prefect_auth}") == "a *** trtops:***"
    for name in ("passwords.ini", "team.json"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    assert read_credentials(folder / "passwords.ini") == ("admin", state.mlflow_password)
    (folder / "team.json").chmod(0o640)
    with pytest.raises(errors.ConfigError, match="has mode 640"):
        servers.status(folder)
    (folder / "team.json").chmod(0o600)


def test_shell_lines_contain_no_password(folder: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(errors.ConfigError, match="No servers were started"):
        access.shell_lines(folder)
    state = TeamState(prefect_port=4201, mlflow_port=5001)
    write_state(folder, state)
    root = str(folder.parent)

    assert main(["team", "env", "--root", root]) == 0
    lines = capsys.readouterr().out
    for server, password in (("prefect", state.prefect_auth), ("mlflow", f"admin:{state.mlflow_password}")):
        assert main(["team", "password", server, "--root", root]) == 0
        assert capsys.readouterr().out.strip() == password

    assert "export PREFECT_API_URL=http://127.0.0.1:4201/api\n" in lines
    assert "export MLFLOW_TRACKING_URI=http://127.0.0.1:5001\n" in lines
    assert f'PREFECT_API_AUTH_STRING="$({access.program()} team password prefect --root {root})"' in lines
    assert state.mlflow_password not in lines and state.prefect_auth not in lines


def test_variables_of_other_servers_are_removed(folder: Path, monkeypatch: pytest.MonkeyPatch):
    others = ("PREFECT_API_URL", "PREFECT_API_KEY", "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_PASSWORD")
    for name in (*others, "NO_PROXY", "PREFECT_SERVER_LOGGING_LEVEL"):
        monkeypatch.setenv(name, "elsewhere")

    environment = access.service_environment(folder, {})

    assert not set(others) & set(environment)
    assert environment["NO_PROXY"] == "elsewhere,127.0.0.1,localhost"
    assert environment["PREFECT_SERVER_LOGGING_LEVEL"] == "elsewhere"
    assert environment["PREFECT_RESULTS_DEFAULT_SERIALIZER"] == "json"


def test_status_and_down_without_servers(folder: Path, capsys: pytest.CaptureFixture[str]):
    root = str(folder.parent / "none")

    assert main(["team", "status", "--root", root]) == 1
    assert f"No servers were started for {root}. Start them: trtops team up" in capsys.readouterr().out
    assert main(["team", "down", "--root", root]) == 0
    assert not Path(root).exists()

    (folder / "team.json").touch(0o600)
    with pytest.raises(errors.FormatError, match=r"team\.json: .*by hand"):
        servers.status(folder)


@pytest.mark.parametrize("kind", ["docker", "kubernetes"])
def test_pool_templates_fit_prefects_schema(kind):
    deploy = Path(servers.__file__).parent / "deploy"
    template = json.loads((deploy / f"pool-{kind}.json").read_text())

    WorkPoolCreate(name="x", type=kind, base_job_template=template)  # refuses unknown variables

    variables = template["variables"]["properties"]
    assert set(re.findall(r"{{ (\w+) }}", json.dumps(template["job_configuration"]))) == set(variables)
    for name, variable in variables.items():
        assert variable["description"].endswith("."), name
        if "default" in variable:
            jsonschema.validate(variable["default"], variable)
    volumes = re.findall("^VOLUME (.*)$", (deploy / "Dockerfile").read_text(), re.MULTILINE)
    assert volumes == ["/models", "/var/lib/trtops"] and all(path in json.dumps(template) for path in volumes)
