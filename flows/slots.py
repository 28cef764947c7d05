"""One build per GPU at a time, whoever asks for it: a concurrency limit of the Prefect server, made when it is missing."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists

from trtops.backend.engines import engine_backend
from trtops.errors import BackendError


@contextmanager
def gpu_slot(devices: Sequence[str]) -> Iterator[None]:
    """Hold one of this machine's GPUs, as the server counts them, for the time of a block; nothing without GPUs.

    The limit is as large as the number of devices, and strict: a slot that cannot be had is waited for, and a limit that
    somebody deleted in the meantime is an error. A slot whose holder died is free again after Prefect's lease of 300 s.
    """
    if not devices:
        yield
        return
    name = limit_name(platform.node())
    with get_client(sync_client=True) as client, suppress(ObjectAlreadyExists):  # made by another at this moment
        client.upsert_global_concurrency_limit_by_name(name, len(devices))
    with concurrency(name, strict=True):
        yield


def gpus_of(backend: str) -> tuple[str, ...]:
    """The GPUs that a back end builds on, by a name that the driver gives them; none for the processor."""
    try:
        uuid = engine_backend(backend).device_state().get("uuid_sha256")
    except BackendError:
        return ()  # the op will say what is missing, and mark its run
    return () if uuid is None else (uuid,)


def limit_name(host: str) -> str:
    """The name of a machine's concurrency limit."""
    return f"trtops-gpus-{host}"
