"""Remove secrets from text. Everything logged, stored as text or raised passes through here.

Users and passwords in URLs (``scheme://user:password@host``), values of environment variables with names such as
``AWS_SECRET_ACCESS_KEY``, and tokens with the prefixes of well-known services are recognized; nothing else is.
"""

import os
import re
from typing import Any

_SECRET_NAME = (
    r"(?i)SECRET|TOKEN(?!S|IZ)|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIAL|AUTH_STRING"
    r"|ENCRYPTION_KEY"
)
_PUBLIC_NAME = r"(?i)_(FILE|PATH|DIR|URL|URI|ID|USERNAME|USER|COUNT|LIMIT|PARALLELISM)$"

# Patterns are compiled on first use: most texts need none, and every process imports this module.
# The second alternative is a password with a slash, which should have been encoded; text after a port is a path.
_USERINFO = r"(?<=://)(?:[^/\s\"'<>\\`]+@|[^/@:\s\"'<>\\`]+:(?!\d+/)[^\s\"'<>\\`]+@)"
# Substrings that a token contains (a fast test), and the pattern of the token; its group 1, if any, is kept.
_TOKENS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("AKIA", "ASIA"), r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"\bgh[pousr]_[A-Za-z0-9]{30,}\b"),
    (("github_pat_",), r"\bgithub_pat_\w{20,}\b"),
    (("glpat-",), r"\bglpat-[\w-]{20,}"),
    (("xox",), r"\bxox[abeoprs]-[\w-]{10,}"),
    (("hf_",), r"\bhf_[A-Za-z0-9]{30,}\b"),
    (("sk-",), r"\bsk-[\w-]{20,}"),
    (("AIza",), r"\bAIza[\w-]{35}"),
    (("nvapi-",), r"\bnvapi-[\w-]{20,}"),
    (("pnu_", "pnb_"), r"\bpn[ub]_[A-Za-z0-9]{20,}\b"),
    (("dapi",), r"\bdapi[0-9a-f]{32}\b"),
    (("npm_",), r"\bnpm_[A-Za-z0-9]{36}\b"),
    (("pypi-",), r"\bpypi-[\w-]{40,}"),
    (("eyJ",), r"\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}"),
    (("PRIVATE KEY-----",), r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"),
    (("uthorization",), r"(?i)\b(authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+)[^\s\"']+"),
    (("AccountKey=", "SharedAccessSignature="), r"\b(AccountKey=|SharedAccessSignature=)[^;\s\"']+"),
    (("?", "&"), r"(?i)([?&](?:[\w-]*(?:signature|token|api_?key|password)|sig)=)[^&\s\"'<>]+"),
)


def masked(text: str) -> str:
    """Text without recognized secrets: tokens and values become ``***``; users and passwords in URLs are removed."""
    if "://" in text:
        text = re.sub(_USERINFO, "", text)
    for hints, form in _TOKENS:
        if hints[0] in text or (len(hints) > 1 and any(hint in text for hint in hints)):
            text = re.sub(form, lambda match: (match[1] if match.lastindex else "") + "***", text)
    for value in _secrets():
        if value in text:
            whole = re.escape(value)
            # A short value may occur in a longer word by chance.
            text = re.sub(whole if len(value) >= 16 else rf"(?<!\w){whole}(?!\w)", "***", text)
    return text


def masked_json(value: Any) -> Any:
    """Apply :func:`masked` to every string in nested lists and dicts."""
    if isinstance(value, dict):
        return {name: masked_json(part) for name, part in value.items()}
    if isinstance(value, list):
        return [masked_json(part) for part in value]
    return masked(value) if isinstance(value, str) else value


_cached_secrets: tuple[dict[object, object], tuple[str, ...]] = {}, ()


def _secrets() -> tuple[str, ...]:
    """Secret values in the environment, long ones first."""
    global _cached_secrets
    # Decoding all variables takes longer than the rest of a line of the log.
    variables = os.environ._data  # type: ignore[attr-defined]
    if _cached_secrets[0] != variables:
        candidates: set[str] = set()
        for name, value in os.environ.items():
            if re.search(_SECRET_NAME, name) and not re.search(_PUBLIC_NAME, name) and not os.path.exists(value):
                # PREFECT_API_AUTH_STRING is "user:password".
                candidates.add(value.split(":", 1)[-1] if "AUTH_STRING" in name.upper() else value)
            if "://" in value and (user := re.search(_USERINFO, value)) is not None:
                candidates.add(user[0][:-1].partition(":")[2])
        secret = (value for value in candidates if len(value) >= 6 and not value.isdecimal())
        _cached_secrets = dict(variables), tuple(sorted(secret, key=len, reverse=True))
    return _cached_secrets[1]
