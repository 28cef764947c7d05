"""PyTorch models, each returned by a function: a vision network, a decoder with a cache, a Hugging Face folder."""

import tempfile

import torch
from torch import nn


class Vision(nn.Module):
    """A small classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(8, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        return self.head(self.body(image).flatten(1))


class Decoder(nn.Module):
    """One step of a transformer: keys and values of earlier tokens are inputs; those with this token are outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 16)
        self.query, self.keys_and_values, self.head = nn.Linear(16, 16), nn.Linear(16, 32), nn.Linear(16, 100)

    def forward(self, token: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the logits, and the cache with this token."""
        x = self.words(token)
        key, value = self.keys_and_values(x).chunk(2, -1)
        keys, values = torch.cat([keys, key], 1), torch.cat([values, value], 1)
        weights = torch.softmax(self.query(x) @ keys.transpose(1, 2) / 4, -1)
        return {"logits": self.head(weights @ values), "new_keys": keys, "new_values": values}


class Forgetful(nn.Module):
    """The same with the cache inside the module, which no export has."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder, self.keys, self.values = Decoder(), torch.zeros(1, 0, 16), torch.zeros(1, 0, 16)

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        outputs = self.decoder(token, self.keys, self.values)
        self.keys, self.values = outputs["new_keys"], outputs["new_values"]
        return outputs["logits"]


def vision() -> nn.Module:
    """Return the classifier."""
    torch.manual_seed(0)
    return Vision()


def decoder() -> nn.Module:
    """Return the decoder."""
    torch.manual_seed(0)
    return Decoder()


def forgetful() -> nn.Module:
    """Return the decoder that keeps its cache."""
    torch.manual_seed(0)
    return Forgetful()


def hugging_face() -> nn.Module:
    """Return the model of a folder; tiny random weights stand for downloaded ones."""
    from transformers import AutoModel, BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    with tempfile.TemporaryDirectory() as folder:
        BertModel(config).save_pretrained(folder)
        return AutoModel.from_pretrained(folder, attn_implementation="eager")
