from __future__ import annotations

import os
import threading

from trtops.backend.onnxrt.log import SessionLog


def test_each_log_collects_its_own_lines(capfd) -> None:
    logs = [SessionLog() for _ in range(4)]

    def write(log: SessionLog) -> None:
        for number in range(50):
            with log.collecting():
                os.write(2, f"[W:onnxruntime:{log.log_id}, a.cc:1 f] line {number}\n".encode())

    threads = [threading.Thread(target=write, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(log.text() == "".join(f"[W] line {number}\n" for number in range(50)) for log in logs)
    assert capfd.readouterr().err == ""
