"""Receive the webhook of MLflow's model registry, and audit accepted engines when an alias is set.

    TRTOPS_WEBHOOK_SECRET=... PREFECT_API_URL=... python docs/webhook_receiver.py 8099

Each request is checked: its signature, and that it is not older than five minutes. The page "Servers for a team" has
the commands that create the webhook.
"""

import base64
import hashlib
import hmac
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MAX_BYTES = 1 << 16
MAX_AGE_SECONDS = 300


def is_signed(body: bytes, headers: Mapping[str, str], secret: str) -> bool:
    """True if MLflow signed this body with the secret, at most five minutes ago."""
    delivery, moment = headers.get("X-MLflow-Delivery-Id", ""), headers.get("X-MLflow-Timestamp", "")
    if not moment.isdecimal() or abs(time.time() - int(moment)) > MAX_AGE_SECONDS:
        return False
    digest = hmac.new(secret.encode(), f"{delivery}.{moment}.".encode() + body, hashlib.sha256).digest()
    expected = f"v1,{base64.b64encode(digest).decode()}"
    return hmac.compare_digest(expected.encode(), headers.get("X-MLflow-Signature", "").encode())


def alias_set(name: str, alias: str, version: str) -> None:
    """Start an audit of all accepted engines, if there is a Prefect server."""
    print(f"{name!r}: {alias} is now version {version}", flush=True)
    if os.environ.get("PREFECT_API_URL"):
        subprocess.Popen(
            [sys.executable, "-m", "prefect", "deployment", "run", "audit/audit-cpu", "-p", "accepted=true"]
        )


class Receiver(BaseHTTPRequestHandler):
    """Answers 204, or 403 to a request that MLflow did not sign."""

    def do_POST(self) -> None:
        """Check one request, and act on it."""
        body = self.rfile.read(min(int(self.headers.get("Content-Length") or 0), MAX_BYTES))
        trusted = is_signed(body, self.headers, os.environ["TRTOPS_WEBHOOK_SECRET"])
        self.send_response(204 if trusted else 403)
        self.end_headers()
        found = json.loads(body) if trusted else {}
        if (found.get("entity"), found.get("action")) == ("model_version_alias", "created"):
            alias_set(found["data"]["name"], found["data"]["alias"], found["data"]["version"])


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
