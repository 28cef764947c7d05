"""Every block of the documentation and of the examples runs as it stands there, and every link leads somewhere.

The pages share one folder with the demo's model and images, so that a page can use the campaign of an earlier one.
``<campaign>``, ``<build>`` and ``<calibration>`` stand for the newest run of their kind; a line says ``# exit code 1``
if that is not 0.
"""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from examples.digits import Digits
from tests.long_runs import LONG
from trtops.cli import registry
from trtops.cli.command_line import load, parser_of
from trtops.cli.main import main
from trtops.tracking import schema
from trtops.tracking.store import open_tracker

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "pages"
EXAMPLES = ROOT / "examples"
KINDS = {"campaign": "debug_build", "build": "build", "calibration": "calibrate", "iteration": "iteration"}
ORDER = ("tutorial", "flaky", "convert", "calibrate", "gate")
"""Pages whose runs others use come first, the rest by name."""

HELD_OUT = 16
"""Held-out images of the demo that are kept here: engines are timed on all of them at once."""

FEWER = {
    "trtops gate digits.onnx": "trtops gate digits.onnx --policy policy.yaml",
    'gate(["digits.onnx"],': 'gate(["digits.onnx"], policy="policy.yaml",',
    "debug prove <campaign>": "debug prove <campaign> --repeats 1",
    "debug bisect <campaign>": "debug bisect <campaign> --max-builds 6",
    "--until 10 --atol": "--until 6 --atol",
}
"""Replacements of what would take a minute, with fewer builds; by the example's policy, latency is not measured."""

ONLY_PARSED = () if LONG else ("audit", "prove", "bisect", "debug_build")
"""Pages whose commands take long and have tests of their own: they run with ``TRTOPS_TEST_LONG=1``."""

DOCUMENTS = sorted(
    [ROOT / "README.md", *PAGES.rglob("*.md"), *EXAMPLES.rglob("*.md")],
    key=lambda path: (ORDER.index(path.stem) if path.stem in ORDER else len(ORDER), str(path)),
)
EXPORT = re.compile(r"export (\w+)=\$PWD/(\S+)")
NOT_RUN = re.compile("make |pip |prefect |git |cp |cd |python script|eval |trtops team|trtops store ui")


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


def lines(path: Path) -> list[tuple[str, set[int]]]:
    """Command lines of a page, each with the exit codes that it may have."""
    documented = []
    for line in "\n".join(blocks(path, "sh")).splitlines():
        command, _, comment = line.strip().partition("  #")
        if command:
            documented.append(
                (command, {int(code) for code in re.findall(r"\d", comment)} if "exit code" in comment else {0})
            )
    return documented


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, digits: Digits) -> Iterator[Path]:
    """The demo's model and images, a store, and what the examples bring."""
    work = tmp_path_factory.mktemp("documents")
    for file in (digits.model, digits.calibration):
        shutil.copy(file, work)
    np.savez(work / digits.images.name, image=np.load(digits.images)["image"][:HELD_OUT])
    np.save(work / digits.labels.name, np.load(digits.labels)[:HELD_OUT])
    for file in EXAMPLES.glob("*/*"):
        if file.suffix != ".md":
            shutil.copy(file, work)
    (work / "models").mkdir()
    shutil.copy(work / "digits.onnx", work / "models")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        patch.setenv("TRTOPS_HOME", str(work / "mlruns"))
        patch.setattr(sys, "path", [str(ROOT), *sys.path])
        yield work


def filled(line: str, store: Path) -> str:
    """A line with the newest run of each kind: of campaigns one with bad builds, of others a good one."""

    def newest(match: re.Match[str]) -> str:
        verdict = "bad" if match[1] == "campaign" else "good"
        infos = open_tracker(store).find(tags={schema.Tag.KIND: KINDS[match[1]], schema.Tag.VERDICT: verdict})
        assert infos, f"{line}: no {KINDS[match[1]]} run is {verdict}"
        return max(infos, key=lambda info: info.start_time).id

    return re.sub(f"<({'|'.join(KINDS)})>", newest, line)


def shortened(text: str) -> str:
    """A line or a snippet as it is run here, to take less time."""
    for long, short in FEWER.items():
        text = text if "--policy" in text or short in text else text.replace(long, short)
    return text


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_all_blocks_run(path, folder, capsys, caplog, monkeypatch):
    for line, codes in lines(path):
        if NOT_RUN.match(line):
            continue
        if exported := EXPORT.fullmatch(line):
            monkeypatch.setenv(exported[1], str(folder / exported[2]))
            continue
        words = shlex.split(filled(shortened(line), Path(os.environ["TRTOPS_HOME"])))
        assert words[0] == "trtops", line
        if path.stem in ONLY_PARSED:
            command, rest = registry.find(words[1:])
            parser_of(command, load(command)).parse(rest)
            continue
        code = main(words[1:])
        assert code in codes, f"{line}: exit code {code}\n{capsys.readouterr()}\n{caplog.text}"
    for snippet in blocks(path, "python"):
        code = compile(filled(shortened(snippet), Path(os.environ["TRTOPS_HOME"])), str(path), "exec")
        if path.stem not in ONLY_PARSED:
            exec(code, {})
    for script in path.parent.glob("script.py"):
        runpy.run_path(str(folder / script.name))


def test_links_lead_to_files_and_headings():
    generated = {PAGES / "mistakes.md", PAGES / "reference" / "commands.md", PAGES / "reference" / "config.md"}
    for path in (ROOT / "CHANGELOG.md", *DOCUMENTS):
        text = re.sub("```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if target.startswith(("http://", "https://", "mailto:")):
                continue
            file, _, heading = target.partition("#")
            target_path = (path.parent / file).resolve() if file else path
            assert target_path in generated or target_path.exists(), f"{path}: {target}"
            heads = re.findall(r"^#+ (.*)$", target_path.read_text(encoding="utf-8"), re.MULTILINE) if heading else []
            anchors = {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}
            assert not heading or heading in anchors, f"{path}: {target}"


def test_make_targets_in_documents_exist():
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    named = {target for text in texts for target in re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE)}
    assert {"demo", "test", "docs"} <= named
    for target in named:
        done = subprocess.run(["make", "-n", target, "VENV=/nowhere"], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_commands_in_sentences_exist():
    for path in DOCUMENTS:
        text = re.sub("```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for span in re.findall("`trtops ([^`(.]+)`", text):
            words = shlex.split(re.sub("<[^>]*>", "abc", span.replace("\n", " ")))
            assert registry.find(words)[0], (path, span)


def test_the_documentation_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    config = str(ROOT / "docs" / "mkdocs.yml")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--config-file", config]
    done = subprocess.run([*command, "--site-dir", str(tmp_path)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    written = (tmp_path / "reference" / "config" / "index.html").read_text(encoding="utf-8")
    assert "BuildConfig" in written and (tmp_path / "mistakes" / "index.html").exists()


def test_pages_that_deny_a_tactic_have_a_store_of_their_own():
    proving = [path for path in DOCUMENTS if any("debug prove" in line for line, _ in lines(path))]
    assert len(proving) >= 2
    for path in proving:
        commands = [line for line, _ in lines(path)]
        assert EXPORT.fullmatch(commands[0]) and commands[0].startswith("export TRTOPS_HOME="), path
