from __future__ import annotations

import os

from trtops.backend.onnxrt.log import SessionLog


def test_unfinished_lines_are_not_split(capfd) -> None:
    first, second = SessionLog(), SessionLog()

    with second.collecting():
        with first.collecting():
            os.write(2, f"[W:onnxruntime:{first.log_id}, a.cc:1 f] one\n".encode())
            os.write(2, f"[W:onnxruntime:{second.log_id}, a.cc:1 f] two ".encode())
        os.write(2, b"halves\n")

    assert first.text() == "[W] one\n"
    assert second.text() == "[W] two halves\n"
    assert capfd.readouterr().err == ""
