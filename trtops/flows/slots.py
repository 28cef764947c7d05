"""One build per GPU at a time, whoever asks for it: a concurrency limit of the Prefect server for each, made when missing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectHTTPStatusError

from trtops.backend.engines import engine_backend
from trtops.errors import BackendError
from trtops.ops.campaign.benches import gpus_of
from trtops.ops.campaign.config import Campaign, Place

_POLL_SECONDS = 1.0
_TAKEN = 423  # HTTP's "Locked", by which the server says that all slots are taken


@contextmanager
def gpu_slot(gpus: Sequence[str]) -> Iterator[str | None]:
    """Hold one of some GPUs, as the server counts them, for the time of a block; yields its name, None without GPUs.

    Each GPU has a limit of its own, so that whoever may use one of them counts with whoever may use four. A limit that is
    missing is made with one slot; one that is there is left as it is. Waits for a GPU to come free. A slot whose holder
    died is free again after Prefect's lease of 300 s.

    Args:
        gpus: The names that the driver gives them (:attr:`trtops.backend.trt.Gpu.uuid_sha256`).
    """
    if not gpus:
        yield None
        return
    with ExitStack() as stack:
        yield _first_free(gpus, stack)


@contextmanager
def current_slot(backend: str) -> Iterator[str | None]:
    """Hold the GPU that a back end uses in this process; nothing where it needs none."""
    try:
        gpu = engine_backend(backend).device_state().get("uuid_sha256")
    except BackendError:
        gpu = None  # the op will say what is missing, and mark its run
    with gpu_slot(() if gpu is None else (gpu,)) as held:
        yield held


@contextmanager
def bench_slot(place: Place) -> Iterator[tuple[str, ...]]:
    """Hold one of the GPUs that :func:`trtops.ops.campaign.benches.bench` may build on; yields it as ``devices`` for the op."""
    gpus = gpus_of(place.backend, place.devices)
    with gpu_slot(tuple(gpus)) as held:
        yield place.devices if held is None else (gpus[held],)


@contextmanager
def campaign_slot(campaign: Campaign) -> Iterator[Campaign]:
    """Hold one of a campaign's GPUs; yields the campaign on that GPU alone."""
    with bench_slot(campaign.config.place) as devices:
        yield campaign.on(devices)


def limit_name(gpu: str) -> str:
    """The name of a GPU's concurrency limit."""
    return f"trtops-gpu-{gpu}"


def _first_free(gpus: Sequence[str], stack: ExitStack) -> str:
    while True:
        for gpu in gpus:
            name = limit_name(gpu)
            _make_limit(name)
            try:
                stack.enter_context(concurrency(name, strict=True, max_retries=0))
            except ConcurrencySlotAcquisitionError as exc:
                answer = exc.__cause__
                if not (isinstance(answer, PrefectHTTPStatusError) and answer.response.status_code == _TAKEN):
                    raise
            else:
                return gpu
        time.sleep(_POLL_SECONDS)


def _make_limit(name: str) -> None:
    with get_client(sync_client=True) as client:
        try:
            client.read_global_concurrency_limit_by_name(name)
        except ObjectNotFound:
            with suppress(ObjectAlreadyExists):  # made by another at this moment
                client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
