"""Twenty modules whose export is right, with inputs for each, and twenty with a planted fault of the export."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Case:
    """A module, its inputs, and the axes that may change."""

    make: Callable[[], nn.Module]
    inputs: Arrays
    dynamic: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    kind: str = ""  # of the loss that is to be named; empty if the export is right
    place: str = ""  # a part of its place or text


def floats(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ids(*shape: int, most: int = 50) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, most, shape)


class ResidualNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.block = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        return self.head((y + self.block(y)).mean((2, 3)))


class Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 12, 1), nn.Hardswish(), nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.ReLU6(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.bottom = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(8, 2, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.down(image))
        z = torch.relu(self.bottom(F.max_pool2d(y, 2)))
        return self.last(torch.cat([y, self.up(z)], 1))


class Attention(nn.Module):
    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, 16, 4, stride=4), nn.Parameter(torch.randn(1, 1, 16))
        self.norm, self.attention, self.head = nn.LayerNorm(16), Attention(), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.patch(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(y.shape[0], -1, -1), y], 1)
        return self.head((y + self.attention(self.norm(y)))[:, 0])


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(50, 16), nn.Embedding(32, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, input_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.words(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        bias = (1.0 - mask.float())[:, None, None, :] * -1e4
        bias = bias.expand(-1, 2, input_ids.shape[1], -1).flatten(0, 1)
        return self.head(self.layer(y, src_mask=bias))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 8, batch_first=True, bidirectional=True), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 8, batch_first=True)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, state = self.gru(x, h)
        return y, state


class Detector(nn.Module):
    """The best four boxes; a box falls to a better one that it overlaps."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.boxes, self.scores = (
            nn.Conv2d(3, 8, 3, stride=4, padding=1),
            nn.Conv2d(8, 4, 1),
            nn.Conv2d(8, 1, 1),
        )

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        y = torch.relu(self.body(image))
        corner, size = self.boxes(y).flatten(2).transpose(1, 2).sigmoid().mul(16).chunk(2, -1)
        score = self.scores(y).flatten(1).sigmoid()
        low, high = corner, corner + size
        shared = torch.minimum(high[:, :, None], high[:, None]) - torch.maximum(low[:, :, None], low[:, None])
        overlap = shared.clamp(min=0).prod(-1)
        area = size.prod(-1)
        iou = overlap / (area[:, :, None] + area[:, None] - overlap + 1e-6)
        better = score[:, None, :] > score[:, :, None]
        kept = torch.where(((iou > 0.5) & better).any(-1), torch.zeros_like(score), score)
        best, index = kept.topk(4, 1)
        boxes = torch.cat([low, high], -1).gather(1, index[..., None].expand(-1, -1, 4))
        return {"scores": best, "boxes": boxes * (best > 0)[..., None]}


class Audio(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(1, 8, 9, stride=4), nn.GELU(), nn.Conv1d(8, 8, 5, dilation=2), nn.GELU())
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        return self.norm(self.net(wave[:, None])).amax(-1)


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        time = torch.arange(32.0)
        self.register_buffer("basis", torch.cos(2 * math.pi * torch.outer(time, time[:17]) / 32))

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return torch.log1p((frames @ self.basis).square())


class Decoder(nn.Module):
    """One step of a decoder: the cache comes in and goes out."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kv, self.q, self.head = (
            nn.Embedding(50, 8),
            nn.Linear(8, 16),
            nn.Linear(8, 8),
            nn.Linear(8, 50),
        )

    def forward(self, token: torch.Tensor, past_k: torch.Tensor, past_v: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.words(token)
        k, v = self.kv(x).chunk(2, -1)
        k, v = torch.cat([past_k, k], 1), torch.cat([past_v, v], 1)
        y = torch.softmax(self.q(x) @ k.transpose(1, 2) / 8**0.5, -1) @ v
        return {"logits": self.head(y), "k": k, "v": v}


class Cond(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.InstanceNorm2d(4), nn.GroupNorm(2, 4), nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(x)))


class Resized(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False) + 1


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 3), nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(self.gate(x), -1)
        return sum(weights[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


class Half(nn.Module):
    """Weights in half precision, as they are published; the reference is in FP32."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6).half()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))


class Trained(nn.Module):
    """Dropout and batch normalization, left in training mode by the caller."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.train()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Rotary(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angle = torch.arange(x.shape[1], dtype=torch.float32)[:, None] / 10 ** torch.arange(0, 1, 0.25)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class Optional(nn.Module):
    """An input that nothing depends on is no loss, and neither is a counter that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, unused: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        self.calls += 1
        return x if bias is None else x + bias


IMAGE, BATCH = {"x": floats(2, 3, 16, 16)}, {"x": (0,)}
RIGHT = {
    "residual": Case(ResidualNet, IMAGE, {"x": (0, 2, 3)}),
    "depthwise": Case(Depthwise, IMAGE, BATCH),
    "u-net": Case(UNet, {"image": floats(2, 1, 16, 16)}, {"image": (0,)}),
    "vit": Case(ViT, IMAGE, BATCH),
    "bert": Case(
        Bert, {"input_ids": ids(2, 7), "mask": np.ones((2, 7), np.int64)}, {"input_ids": (0, 1), "mask": (0, 1)}
    ),
    "lstm": Case(Lstm, {"x": floats(2, 5, 6)}),
    "gru": Case(Gru, {"x": floats(2, 5, 6), "h": floats(1, 2, 8)}),
    "detector": Case(Detector, {"image": floats(2, 3, 32, 32)}, {"image": (0,)}),
    "audio": Case(Audio, {"wave": floats(2, 400)}, {"wave": (0,)}),
    "spectrum": Case(Spectrum, {"frames": floats(2, 5, 32)}, {"frames": (0, 1)}),
    "decoder": Case(
        Decoder, {"token": ids(2, 1), "past_k": floats(2, 3, 8), "past_v": floats(2, 3, 8)},
        {"past_k": (1,), "past_v": (1,)},
    ),
    "cond": Case(Cond, {"x": floats(2, 5)}),
    "norms": Case(Norms, {"x": floats(2, 4, 6, 6)}, BATCH),
    "resized": Case(Resized, IMAGE, {"x": (0, 2)}),
    "mixture": Case(Mixture, {"x": floats(4, 6)}, BATCH),
    "half": Case(Half, {"x": floats(4, 6)}, BATCH),
    "trained": Case(Trained, {"x": floats(4, 6)}, BATCH),
    "rotary": Case(Rotary, {"x": floats(2, 5, 8)}, {"x": (0, 1)}),
    "optional": Case(Optional, {"x": floats(2, 5), "unused": floats(3)}, BATCH),
    "attention": Case(Attention, {"x": floats(2, 5, 16)}, {"x": (0, 1)}),
}  # fmt: skip


class Rows(nn.Module):
    """A list of Python, of the input's rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack(list(x)).cumsum(0)


class Inner(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(6, 6), inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.first(x))


class Branch(nn.Module):
    """A branch by a size: long inputs are scaled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 4:
            return x * 2
        return x + 1


class Parity(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] % 2 == 0 else x[:-1]


class Steps(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x[:, 0]
        for step in range(1, x.shape[1]):
            y = y * 0.5 + x[:, step]
        return y


class Halves(nn.Module):
    """As many halvings as the size allows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.shape[1]
        while size > 1:
            size, x = size // 2, x * 0.5
        return x


class Positions(nn.Module):
    """Positions for the length of the first call, kept for later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.table: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.zeros(6)
        self.table = self.table * 0.5 + x.mean((0, 1))
        return x + self.table


class Drop(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5)


class Noise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.alpha_dropout(x, 0.5, training=True)


class Cache(nn.Module):
    """A decoder whose cache is a buffer, written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 8, 6))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(1, position, x)
        return torch.softmax(x @ self.keys.transpose(1, 2), -1) @ self.keys


class Memory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.hidden = nn.GRUCell(6, 6), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.hidden = self.cell(x, self.hidden)
        return self.hidden * 2


class Average(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.mean((0, 1)))
        return x - self.mean


class TwoInputs(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2 - y


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))


SEQUENCE, ROWS = {"x": floats(4, 6, 6)}, {"x": floats(4, 6)}
LOST = {
    "rows": Case(Rows, ROWS, BATCH, "constant", "modules.py"),
    "inner rows": Case(lambda: Inner(Rows()), ROWS, BATCH, "constant", "module inner"),
    "branch": Case(Branch, ROWS, BATCH, "constant", "modules.py"),
    "inner branch": Case(lambda: Inner(Branch()), ROWS, BATCH, "constant", "module inner"),
    "parity": Case(Parity, ROWS, BATCH, "constant", "modules.py"),
    "steps": Case(Steps, {"x": floats(2, 5, 6)}, {"x": (1,)}, "constant", "modules.py"),
    "inner steps": Case(lambda: Inner(Steps()), {"x": floats(2, 5, 6)}, {"x": (1,)}, "constant", "module inner"),
    "halves": Case(Halves, ROWS, {"x": (1,)}, "constant", "modules.py"),
    "dropout": Case(Drop, ROWS, {}, "training", "modules.py"),
    "inner dropout": Case(lambda: Inner(Drop()), ROWS, {}, "training", "inner"),
    "alpha dropout": Case(Noise, ROWS, {}, "training"),
    "buffer": Case(Average, SEQUENCE, {}, "state", "mean"),
    "attribute": Case(Positions, SEQUENCE, {}, "state", "table"),
    "hidden": Case(Memory, ROWS, {}, "state", "hidden"),
    "cache": Case(Cache, {"x": floats(2, 1, 6), "position": np.array([1])}, {}, "state", "keys"),
}
