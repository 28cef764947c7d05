"""One build per GPU at a time: each GPU has a concurrency limit on the Prefect server, created if it is missing."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import ObjectAlreadyExists, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL

from trtops.backend.engines import engine_backend
from trtops.errors import BackendError
from trtops.ops.devices import BuildPlace, gpus_of
from trtops.spec import BackendName


def in_flow() -> bool:
    """Whether this code runs in a flow or task of Prefect, and so with a server."""
    return FlowRunContext.get() is not None or TaskRunContext.get() is not None


def has_server() -> bool:
    """Whether a Prefect server is configured, or one runs the present flow."""
    return bool(PREFECT_API_URL.value()) or in_flow()


@contextmanager
def gpu_slot(gpus: Sequence[str]) -> Iterator[str | None]:
    """Hold one of some GPUs for the time of a block, after waiting for one; yields its name, or None without GPUs.

    A missing limit is created with one slot; an existing one is left as it is. If the holder dies, the slot is free
    again after Prefect's lease of 300 s.

    Args:
        gpus: Digests of the GPUs' UUIDs (:attr:`trtops.backend.trt.Gpu.uuid_sha256`).
    """
    for gpu in gpus:
        with get_client(sync_client=True) as client, suppress(ObjectAlreadyExists):
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=limit_name(gpu), limit=1))
    with ExitStack() as stack:
        while gpus:
            for gpu in gpus:
                try:
                    stack.enter_context(concurrency(limit_name(gpu), strict=True, max_retries=0))
                except ConcurrencySlotAcquisitionError as exc:
                    # 423 Locked: all slots are taken. Everything else is an error.
                    answer = exc.__cause__
                    if not (isinstance(answer, PrefectHTTPStatusError) and answer.response.status_code == 423):
                        raise
                else:
                    yield gpu
                    return
            time.sleep(1.0)
        yield None


@contextmanager
def device_slot(where: BuildPlace | BackendName | None) -> Iterator[tuple[str, ...]]:
    """Hold one of the GPUs of a place, or the GPU of a back end in this process.

    Yields the ``devices`` for the op: empty for its default. Without a server nothing is held; ops lock their GPU.
    """
    if not has_server():
        yield where.devices if isinstance(where, BuildPlace) else ()
        return
    if isinstance(where, BuildPlace):
        gpus = gpus_of(where.backend, where.devices)
    else:
        gpus = {}
        with suppress(BackendError):  # the op reports what is missing, and marks its run
            state = {} if where is None else engine_backend(where).device_state()
            gpus = {state["uuid_sha256"]: ""} if "uuid_sha256" in state else {}
    with gpu_slot(tuple(gpus)) as held:
        if isinstance(where, BuildPlace):
            yield where.devices if held is None else (gpus[held],)
        else:
            yield ()


def limit_name(gpu: str) -> str:
    """The name of a GPU's concurrency limit."""
    return f"trtops-gpu-{gpu}"
