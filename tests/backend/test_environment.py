from __future__ import annotations

import subprocess

import pytest

from trtops.backend import environment


def test_processor_digest_ignores_the_clock(tmp_path, monkeypatch):
    text = (
        "vendor_id\t: V\nmodel name\t: P 1\nflags\t\t: fpu sse avx2 {flag}\ncpu MHz\t\t: {clock}\n\nvendor_id\t: other"
    )
    found = {}
    for name, flag, clock in (("a", "rdtscp", "1"), ("b", "hypervisor", "2"), ("c", "avx512f", "1")):
        path = tmp_path / name
        path.write_text(text.format(flag=flag, clock=clock))
        monkeypatch.setattr(environment, "_CPUINFO", path)
        environment.processor.cache_clear()
        found[name] = environment.processor()
    environment.processor.cache_clear()

    assert found["a"].name == "P 1"
    assert found["a"] == found["b"]
    assert found["a"].sha256 != found["c"].sha256
    assert found["c"].instruction_sets == ("avx2", "avx512f", "fpu", "sse")


@pytest.fixture
def repository(tmp_path):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.com"]
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-qm", "first")
    git("tag", "v1")
    return tmp_path, git("rev-parse", "HEAD")


def test_commit_is_marked_dirty(repository):
    folder, head = repository
    assert environment.git_commit(folder) == head

    (folder / "file").write_text("2")

    assert environment.git_commit(folder) == f"{head}-dirty"


def test_no_commit_outside_git(tmp_path):
    assert environment.git_commit(tmp_path) is None
