"""Writes the output of commands in the documentation: ``python -m docs.outputs [--check] [PAGE ...]``.

A page runs from top to bottom in an empty folder. The demo's files are there if the page names them, and the files next
to an example. In the source of a page:

- Each line of an ``sh`` block runs, and each ``python`` block is a script. ``# exit code 0 or 1`` at the end of a line
  names its exit codes, if that is not 0. ``<build>`` stands for the newest run of its kind, ``<first build>`` for the
  oldest.
- A ``text`` block directly below is what these print on a terminal of 80 columns, without the log.
- ``<!-- file: NAME -->`` above a block: the block is the content of this file.
- ``<!-- not run: REASON -->`` above a block: it stays as it is.

Numbers differ in each run. A block is written again if more than numbers, ids and the processor differ, or with
``--numbers``.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import os
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from examples.digits import make_digits
from trtops.tracking import schema
from trtops.tracking.store import open_tracker

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "pages"
EXAMPLES = ROOT / "examples"
DOCUMENTS = (ROOT / "README.md", *sorted(PAGES.rglob("*.md")), *sorted(EXAMPLES.rglob("*.md")))

RUN = ("sh", "python")  # languages of blocks that run
KINDS = {"campaign": "debug_build", "build": "build", "calibration": "calibrate", "iteration": "iteration"}
"""The kind of run that each placeholder stands for."""

DEMO_FILES = re.compile(r"mlruns/demo|\]\([./]*(docs/pages/)?tutorial\.md#model-and-images\)")
"""How a page names the demo's files."""

_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>file|not run): (?P<note>[^\n]+) -->\n+)?"
    r"^(?P<fence>`{3,})(?P<language>\w*)\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_COLUMNS = 80
_SECONDS = 900.0  # of one line


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    mark: str  # "file", "not run" or nothing
    note: str  # the name of the file, or the reason
    start: int  # of the fence in the page's text
    end: int
    is_below: bool  # only blank lines are between this block and the one before

    @property
    def runs(self) -> bool:
        """Whether its commands, or its script, are run."""
        return self.language in RUN and not self.mark

    def commands(self) -> list[tuple[str, set[int]]]:
        """Return the lines of a shell block, each with its exit codes."""
        commands = []
        for line in self.text.splitlines():
            command, _, comment = line.strip().partition("  #")
            codes = {int(code) for code in re.findall(r"\d", comment)} if "exit code" in comment else {0}
            commands += [(command.strip(), codes)] if command.strip() else []
        return commands


def blocks_of(page: str) -> list[Block]:
    """Return the fenced blocks of a page's text."""
    blocks: list[Block] = []
    for match in _BLOCK.finditer(page):
        is_below = bool(blocks) and not page[blocks[-1].end : match.start()].strip()
        mark, note = match["mark"] or "", match["note"] or ""
        blocks.append(Block(match["language"], match["text"], mark, note, match.start("fence"), match.end(), is_below))
    return blocks


def outputs_of(page: str) -> list[tuple[Block, Block]]:
    """Return the blocks that run and have their output below, each with that block."""
    blocks = blocks_of(page)
    pairs = itertools.pairwise(blocks)
    return [(run, shown) for run, shown in pairs if run.runs and _is_output(shown)]


def _is_output(block: Block) -> bool:
    return block.is_below and block.language == "text" and not block.mark


def comparable(output: str) -> str:
    """Return an output without what differs from run to run: numbers, ids, units, widths and the processor."""
    text = re.sub(r"\b[0-9a-f]{8,32}\b", "N", output)
    text = re.sub(r";[^;]*\.\.\. \(-v\)", "; ...", text)  # a sentence that is cut at the width of the screen
    text = re.sub(r"[✓✗!] .*?(\bdigits\b|$)", "NAME", text, flags=re.MULTILINE)  # with the processor, and cut as well
    text = re.sub(r"(?<![A-Za-z_])[-+]?\d[\d.,:^-]*(e[-+]?\d+)?x?\d*( ?(ms|us|s|B|KiB|MiB|%))?(?![A-Za-z])", "N", text)
    text = re.sub(r"[-─=|]{2,}", "-", text)
    return " ".join(text.split())


class PageError(Exception):
    """A line of a page does not do what the page says."""


class Shell:
    """Runs the lines and scripts of one page in a folder."""

    def __init__(self, folder: Path, prefect_home: Path) -> None:
        """Begin without settings of this machine. Pages share a home of Prefect: creating one takes ten seconds."""
        self.folder = folder
        settings = ("MLFLOW_", "PREFECT_", "TRTOPS_")
        self.environment = {name: text for name, text in os.environ.items() if not name.startswith(settings)}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment |= {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": str(_COLUMNS), "NO_COLOR": "1"}
        self.environment["PREFECT_HOME"] = str(prefect_home)

    def run(self, block: Block) -> str:
        """Run a block, and return what it prints on a terminal; PageError for another exit code."""
        if block.language == "python":
            return self._output([sys.executable, "-c", self._filled(block.text)], {0}, block.text)
        output = ""
        for command, codes in block.commands():
            if setting := re.fullmatch(r"export (\w+)=(.*)", command):
                self.environment[setting[1]] = setting[2].replace("$PWD", str(self.folder))
            else:
                output += self._output(["bash", "-c", self._filled(command)], codes, command)
        return output

    def _filled(self, text: str) -> str:
        """Return a text with a run for each placeholder: a campaign with bad builds, and good runs of other kinds."""
        for first, name in set(re.findall(f"<(first )?({'|'.join(KINDS)})>", text)):
            tracker = open_tracker(Path(self.environment.get("TRTOPS_HOME", self.folder / "mlruns")))
            verdict = "bad" if name == "campaign" else "good"
            infos = tracker.find(tags={schema.Tag.KIND: KINDS[name], schema.Tag.VERDICT: verdict})
            if not infos:
                raise PageError(f"{text}: no {KINDS[name]} run is {verdict}; a line above has to make one.")
            run = (min if first else max)(infos, key=lambda info: info.start_time)
            text = text.replace(f"<{first}{name}>", run.id)
        return text

    def _output(self, words: list[str], codes: set[int], text: str) -> str:
        (terminal, end), (log, log_end) = _open_terminal(), _open_terminal()  # commands look at both
        process = subprocess.Popen(
            words, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=end, stderr=log_end
        )
        os.close(end)
        os.close(log_end)
        printed, logged = _read(process, terminal, log)
        if process.wait() not in codes:
            expected = f"expected {' or '.join(map(str, sorted(codes)))}"
            raise PageError(f"{text}\nexit code {process.returncode}; {expected}\n{printed}\n{logged[-4000:]}")
        lines = _ESCAPES.sub("", printed).replace("\r\n", "\n").splitlines()
        return "".join(f"{line.rpartition(chr(13))[2].rstrip()}\n" for line in lines)


def _open_terminal() -> tuple[int, int]:
    terminal, end = os.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, _COLUMNS, 0, 0))
    return terminal, end


def _read(process: subprocess.Popen[bytes], *terminals: int) -> list[str]:
    """Return what a process writes to each terminal until it ends; a process that takes too long is killed."""
    end, chunks = time.monotonic() + _SECONDS, {terminal: b"" for terminal in terminals}
    open_terminals = set(terminals)
    while open_terminals:
        ready = select.select(list(open_terminals), [], [], 0.1)[0]
        for terminal in ready:
            try:
                chunks[terminal] += os.read(terminal, 1 << 16)
            except OSError:  # the other end is closed
                open_terminals.discard(terminal)
        if not ready and process.poll() is not None:  # a process that it started may still have the other end
            break
        if time.monotonic() > end:
            process.kill()
    for terminal in terminals:
        os.close(terminal)
    return [chunk.decode(errors="replace") for chunk in chunks.values()]


def run_page(page: str, shell: Shell) -> Iterator[tuple[Block, str]]:
    """Run the text of a page; yield each output block with the output of this run."""
    folder, shown = shell.folder, {run.start: block for run, block in outputs_of(page)}
    for block in blocks_of(page):
        if block.mark == "file":
            (folder / block.note).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.note).write_text(block.text, encoding="utf-8")
        elif block.runs:
            output = shell.run(block)
            if block.start in shown:
                yield shown[block.start], output


def files_of(path: Path, demo: Path) -> dict[str, Path]:
    """Return the files that a page has from the start: the demo's if it names them, and those next to an example."""
    page = path.read_text(encoding="utf-8")
    files = {file.name: file for file in demo.iterdir()} if DEMO_FILES.search(page) else {}
    if path.parent.parent == EXAMPLES:
        files |= {file.name: file for file in path.parent.iterdir() if file.suffix != ".md" and file.is_file()}
    return files


def differences(path: Path, demo: Path, *, numbers: bool = False) -> list[tuple[Block, str]]:
    """Run a page in a folder of its own; return the output blocks that differ in more than numbers, or at all.

    ``demo`` is a folder with the demo's files. Next to it is the home of Prefect.
    """
    with tempfile.TemporaryDirectory(prefix="docs-") as folder:
        for name, file in files_of(path, demo).items():
            shutil.copy(file, Path(folder, name))
        outputs = run_page(path.read_text(encoding="utf-8"), Shell(Path(folder), demo.parent / "prefect"))
        return [(block, text) for block, text in outputs if numbers or comparable(text) != comparable(block.text)]


def written(page: str, outputs: list[tuple[Block, str]]) -> str:
    """Return a page with these outputs."""
    for block, text in sorted(outputs, key=lambda output: -output[0].start):
        fence = "````" if "```" in text else "```"
        page = f"{page[: block.start]}{fence}text\n{text.strip(chr(10))}\n{fence}{page[block.end :]}"
    return page


def main() -> int:
    """Write or check the pages; return 1 if one fails, or differs and is only checked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, default=DOCUMENTS, help="pages (default: all)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page differs")
    parser.add_argument("--numbers", action="store_true", help="write all outputs, also if only numbers differ")
    arguments, failed = parser.parse_args(), False
    with tempfile.TemporaryDirectory(prefix="docs-demo-") as work:
        demo = Path(work, "demo")
        make_digits(demo)
        for path in map(Path.resolve, arguments.pages):
            print(path.relative_to(ROOT), flush=True)
            try:
                changed, page = differences(path, demo, numbers=arguments.numbers), path.read_text(encoding="utf-8")
            except PageError as error:
                print(error)
                failed = True
                continue
            for block, text in changed:
                print(f"  line {page.count(chr(10), 0, block.start) + 1} differs", flush=True)
                if arguments.check:
                    print(f"--- written\n{block.text}--- now\n{text}")
            failed |= bool(changed) and arguments.check
            if changed and not arguments.check:
                path.write_text(written(page, changed), encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
