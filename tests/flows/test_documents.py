"""The documentation: commands exist, outputs are those of a run (``docs.outputs``), and links lead somewhere."""

import ast
import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from docs.outputs import DEMO_FILES, DOCUMENTS, PAGES, ROOT, RUN, PageError, blocks_of, differences, outputs_of, written
from examples.digits import Digits
from tests.long_runs import LONG
from trtops.cli import registry
from trtops.cli.command_line import load, parser_of
from trtops.ops.keywords import option_keywords

QUICK = (
    "docs/pages/polygraphy.md", "examples/01-convert/README.md", "examples/02-compare-two-runtimes/README.md",
    "examples/06-where-the-error-begins/README.md", "examples/08-surgery/README.md",
    "examples/12-polygraphy-script/README.md",
)  # fmt: skip
"""Pages that run in every test; ``make docs`` runs all of them, and so does ``TRTOPS_TEST_LONG=1``."""

TEXTS = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in DOCUMENTS}


@pytest.mark.parametrize("name", [name for name in TEXTS if LONG or name in QUICK])
def test_outputs_are_those_of_a_run(name: str, digits: Digits) -> None:
    changed = [text for _, text in differences(ROOT / name, digits.model.parent)]
    assert not changed, f"`python -m docs.outputs {name}` writes these outputs:\n{''.join(changed)}"


@pytest.mark.parametrize("name", TEXTS)
def test_each_output_has_a_command(name: str) -> None:
    page = TEXTS[name]
    outputs = [shown for _, shown in outputs_of(page)]
    for block in blocks_of(page):
        is_run = block.language in RUN or block.language == "text"
        assert not is_run or block in outputs or block.runs or block.mark, f"no command has this output:\n{block.text}"
        if block.runs and re.search(r"\b(digits\.onnx|\w+_images\.npz)", block.text):
            assert DEMO_FILES.search(page), f"{name} names no source of the files in:\n{block.text}"


@pytest.mark.parametrize("name", TEXTS)
def test_commands_and_calls_have_these_options(name: str) -> None:
    for block in blocks_of(TEXTS[name]):
        if block.language == "sh":
            for command, _ in block.commands():
                line = re.sub(r"<[a-z ]+>", "8d6e3f1a", command)
                words = shlex.split(re.split(r"[|&;>]", line)[0]) if line.startswith("trtops ") else []
                if words and words[1:2] != ["team"]:
                    path, rest = registry.find(words[1:])
                    assert path in registry.COMMANDS, line
                    parser_of(path, load(path)).parse(rest)  # exits for an unknown option
        elif block.language == "python":
            _check_keywords(block.text)


def _check_keywords(script: str) -> None:
    """Compare the keywords of calls of ops and flows with their options, without the seconds that they take."""
    tree = ast.parse(script.replace("from load import", "from trtops.serving.load import"))  # the page copies the file
    names: dict[str, Any] = {}
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    exec(compile(ast.Module(imports, []), "imports", "exec"), names)
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        path = ast.unparse(call.func)
        if not re.fullmatch(r"[\w.]+", path) or path.partition(".")[0] not in names:
            continue
        function = eval(path, names)
        op = inspect.unwrap(getattr(function, "fn", function))
        keywords = {keyword.arg for keyword in call.keywords}
        if keywords and getattr(op, "__module__", "").startswith("trtops"):
            parameters = inspect.signature(getattr(function, "fn", function)).parameters
            assert keywords <= {*parameters, *option_keywords(op)}, ast.unparse(call)


def test_a_page_is_written_from_its_run(tmp_path: Path) -> None:
    page = """
<!-- file: names.txt -->
```yaml
first
```

```sh
export FOLDER=$PWD/out
mkdir $FOLDER && cat names.txt
test -d out && echo "run 0123456789abcdef took 5 ms" && exit 4  # exit code 4
```

```text
first
run 8d6e3f1a took 1.5 s
```

<!-- not run: needs a server -->
```sh
false
```

```python
print("now good")
```

```text
once bad
```
"""
    path = tmp_path / "page.md"
    path.write_text(page)

    [(block, text)] = differences(path, tmp_path)  # numbers and ids are no difference

    assert (block.text, text) == ("once bad\n", "now good\n")
    assert written(page, [(block, text)]) == page.replace("once bad", "now good")
    path.write_text(page.replace("exit code 4", "exit code 0"))
    with pytest.raises(PageError, match="exit code 4; expected 0"):
        differences(path, tmp_path)


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
    done = subprocess.run(["make", "-n", *named, "VENV=/nowhere"], cwd=ROOT, capture_output=True, text=True)
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


def test_pages_that_deny_a_tactic_have_a_store_of_their_own() -> None:
    proving = 0
    for name, page in TEXTS.items():
        lines = [line for block in blocks_of(page) if block.runs for line, _ in block.commands()]
        if any("debug prove" in line for line in lines):
            assert lines[0].startswith("export TRTOPS_HOME=$PWD/"), name
            proving += 1
    assert proving >= 2
