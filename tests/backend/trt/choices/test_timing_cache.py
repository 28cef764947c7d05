"""Timing cache files: they know what they are for, and are refused where they do not belong."""

import io
import json
import threading
from dataclasses import dataclass, replace

import pytest

from tests.backend.trt import api
from trtops import errors
from trtops.backend.trt import library
from trtops.backend.trt.choices import timing_cache
from trtops.backend.trt.choices.timing_cache import TimingCache
from trtops.backend.trt.library.log import add_to_collections
from trtops.backend.trt.lines import release_line
from trtops.spec import Environment

HERE = Environment(backend="tensorrt", backend_version="8.6.0", device="NVIDIA H200", device_sha256="ab" * 32)
CACHE = TimingCache(data=b"\x00\n\xff" * 100, key=HERE.device_key, entries=12, seconds=3.5)
FIRST = b"trtops timing cache 1 "
OPS = b'{"key": null, "entries": 1, "seconds": 0, "ops": [{"op": 3}]}\nx'


def test_caches_go_to_bytes_and_back():
    first_line = CACHE.to_bytes().split(b"\n", 1)[0]

    assert TimingCache.from_bytes(CACHE.to_bytes()) == CACHE
    assert TimingCache.from_bytes(CACHE.data) == TimingCache(data=CACHE.data)  # TensorRT's own
    assert json.loads(first_line.removeprefix(FIRST))["key"] == HERE.device_key


@pytest.mark.parametrize("damage", [FIRST + b"{\n", FIRST, FIRST + b"{}\nx", FIRST + OPS])
def test_a_damaged_first_line_is_refused(damage):
    with pytest.raises(errors.TimingCacheError, match="damaged"):
        TimingCache.from_bytes(damage)


@pytest.mark.parametrize("part", [{"backend_version": "10.8.0"}, {"device_sha256": "cd" * 32}, {"device": "NVIDIA A2"}])
def test_foreign_cache_names_both_devices(part):
    CACHE.check(HERE)
    TimingCache(data=b"x").check(HERE)

    elsewhere = replace(HERE, **part)
    with pytest.raises(errors.TimingCacheError) as caught:
        CACHE.check(elsewhere)
    assert HERE.device_key in str(caught.value) and elsewhere.device_key in str(caught.value)


def test_caches_are_read_from_any_source(tmp_path):
    path = tmp_path / "any.cache"
    path.write_bytes(CACHE.to_bytes())

    for source in (path, str(path), io.BytesIO(CACHE.to_bytes()), CACHE.to_bytes()):
        assert timing_cache.read(source) == CACHE
    assert timing_cache.read(tmp_path / "none.cache").data == b""


def test_hits_misses_and_saved_seconds_are_counted():
    after = replace(CACHE, entries=15)

    assert timing_cache.use(None, after, 4.0).misses == 15
    assert timing_cache.use(CACHE, CACHE, 5.0).saved_seconds == 0
    for read, hits, saved in ((None, 12, 2.5), (9, 9, 2.5), (0, 0, 0)):  # what TensorRT did not read is no hit
        used = timing_cache.use(CACHE, after, 1.0, read=read)
        assert (used.hits, used.misses, used.saved_seconds) == (hits, 15 - hits, saved)


# What TensorRT 8.6.0 said of caches that it had written on the same device, and what 8.6.1 said of a damaged one.
COMPILERS_PART = [
    ("ERROR", "1: [myelinCache.h::deserializeFromBuffer::52] Error Code 1: Myelin (Myelin error from unknown graph)"),
    ("ERROR", "4: The timing cache will not be used!"),
]
DAMAGED = [
    ("ERROR", "1: [stdArchiveReader.cpp::StdArchiveReaderInitCommon::36] Error Code 1: Serialization (Magic tag)"),
    ("ERROR", "4: The timing cache will not be used!"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("messages", "refused"),
    [
        ([], False),
        ([("INFO", "Loaded engine size: 0 MiB")], False),
        (COMPILERS_PART, False),
        (DAMAGED, True),
        (DAMAGED + COMPILERS_PART, True),
        (COMPILERS_PART[1:], True),
        ([("WARNING", "Detected different TensorRT version")], True),
    ],
)
def test_cache_with_unread_compiled_part_is_accepted(messages, refused):
    log = library.LogLines(False)
    log.lines += messages

    assert timing_cache._is_refused(log) is refused


def test_log_holds_lines_of_its_thread():
    with library.collect_log(this_thread=True) as mine, library.collect_log() as everybodys:
        thread = threading.Thread(target=library.log_warning, args=("from elsewhere",))
        thread.start()
        thread.join()
        library.log_warning("from here")

    assert mine.lines == [("WARNING", "trtops: from here")]
    assert [text for _, text in everybodys.lines] == ["trtops: from elsewhere", "trtops: from here"]


@dataclass
class Recorded:
    """Answers and log lines of TensorRT 8.6.0, where a cache of Myelin's was to be merged into another."""

    entries: int
    content: bytes
    log_lines: list[tuple[str, str]]
    other: "Recorded | None" = None

    def create_timing_cache(self, data: bytes) -> "Recorded | None":
        for line in COMPILERS_PART if self.log_lines == COMPILERS_PART[:1] else self.log_lines:
            add_to_collections(*line)
        return self.other

    def get_timing_cache(self) -> "Recorded":
        return self

    def combine(self, other: "Recorded", ignore_mismatch: bool) -> bool:
        for line in self.log_lines:
            add_to_collections(*line)
        return False

    def serialize(self) -> bytes:
        add_to_collections("VERBOSE", f"Serialized {self.entries} timing cache entries")
        return self.content


@pytest.fixture
def tensorrt_8(monkeypatch):
    line = release_line(api.stand_in("8.6.0"))
    monkeypatch.setattr(library, "line", lambda: line)


def test_damaged_or_foreign_caches_are_not_merged(tensorrt_8):
    with pytest.raises(errors.TimingCacheError, match="refuses"):
        timing_cache.merge(Recorded(8, b"mine", DAMAGED), CACHE, TimingCache(data=b"damaged"))
    with pytest.raises(errors.TimingCacheError, match="different devices"):
        timing_cache.merge(None, replace(CACHE, key="a"), replace(CACHE, key="b"))


@pytest.mark.parametrize(("theirs", "merged_data"), [(b"theirs, larger", b"theirs, larger"), (b"less", b"mine")])
def test_unmergeable_caches_keep_the_larger_one(tensorrt_8, theirs, merged_data):
    config = Recorded(8, b"mine", COMPILERS_PART[:1], Recorded(0, b"reserialized", []))

    with library.collect_log() as log:
        merged = timing_cache.merge(config, CACHE, TimingCache(data=theirs))

    assert merged.data == merged_data and log.contains("could not merge") and log.contains(f"{len(theirs)} bytes")
