"""Writes the zoo: real architectures with random weights, from the exporters that people use.

Runs in an environment of its own (``requirements.txt``), since it imports torch, transformers and others.

Run: ``python tests/real/export.py FOLDER``. Existing models are not written again; each has a feed next to it.
"""

import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

WORDS = 100  # a small vocabulary keeps the embeddings small

VISION = (
    *("alexnet", "resnet18", "resnet50", "resnext50_32x4d", "squeezenet1_1", "densenet121", "googlenet"),
    *("inception_v3", "shufflenet_v2_x0_5", "mobilenet_v2", "mobilenet_v3_small", "mnasnet0_5", "efficientnet_b0"),
    *("regnet_y_400mf", "convnext_tiny", "swin_t", "maxvit_t", "vit_b_16"),
)
TRANSFORMERS = {
    "bert": ("BertConfig", "BertModel"),
    "distilbert": ("DistilBertConfig", "DistilBertModel"),
    "roberta": ("RobertaConfig", "RobertaModel"),
    "albert": ("AlbertConfig", "AlbertModel"),
    "electra": ("ElectraConfig", "ElectraModel"),
    "mpnet": ("MPNetConfig", "MPNetModel"),
    "t5_encoder": ("T5Config", "T5EncoderModel"),
}
_SMALL = {
    "vocab_size": WORDS,
    "d_kv": 16,
    **dict.fromkeys(("hidden_size", "dim", "d_model", "embedding_size"), 64),
    **dict.fromkeys(("d_ff", "intermediate_size", "hidden_dim"), 128),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "num_layers"), 3),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_heads"), 4),
}


def from_torch(module, arguments, path, names, *, dynamo=False):  # type: ignore[no-untyped-def]
    """Export a torch module, with the old exporter or the new one."""
    import torch

    module.eval()
    outputs = module(*arguments)
    count = len(outputs) if isinstance(outputs, (tuple, list)) else 1
    torch.onnx.export(
        module,
        arguments,
        str(path),
        input_names=names,
        output_names=[f"out{i}" for i in range(count)],
        opset_version=18 if dynamo else 17,
        dynamo=dynamo,
    )
    np.savez(path.with_suffix(".npz"), **{name: value.numpy() for name, value in zip(names, arguments)})


def seeded():  # type: ignore[no-untyped-def]
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    return torch


def vision(name: str, path: Path, *, dynamo: bool = False) -> None:
    torch = seeded()
    import torchvision

    size = (299, 299) if name == "inception_v3" else (224, 224)
    extra = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    net = getattr(torchvision.models, name)(weights=None, **extra)
    from_torch(net, (torch.rand(1, 3, *size),), path, ["image"], dynamo=dynamo)


def language(name: str, path: Path) -> None:
    torch = seeded()
    import transformers

    config_name, model_name = TRANSFORMERS[name]
    kind = getattr(transformers, config_name)
    config_keys = kind().to_dict()
    config = kind(**{key: value for key, value in _SMALL.items() if key in config_keys or key in kind.attribute_map})
    config.return_dict, config._attn_implementation = False, "eager"
    ids = torch.randint(0, WORDS, (1, 12))
    net = getattr(transformers, model_name)(config)

    class Hidden(torch.nn.Module):
        def __init__(self):  # type: ignore[no-untyped-def]
            super().__init__()
            self.net = net

        def forward(self, ids, mask):  # type: ignore[no-untyped-def]
            return self.net(input_ids=ids, attention_mask=mask)[0]

    from_torch(Hidden(), (ids, torch.ones_like(ids)), path, ["input_ids", "attention_mask"])


def recurrent(name: str, path: Path) -> None:
    torch = seeded()

    class Tagger(torch.nn.Module):
        def __init__(self):  # type: ignore[no-untyped-def]
            super().__init__()
            self.embed = torch.nn.Embedding(WORDS, 48)
            self.cell = getattr(torch.nn, name.upper())(48, 64, num_layers=2, bidirectional=True, batch_first=True)
            self.head = torch.nn.Linear(128, 12)

        def forward(self, tokens):  # type: ignore[no-untyped-def]
            return self.head(self.cell(self.embed(tokens))[0])

    from_torch(Tagger(), (torch.randint(0, WORDS, (1, 16)),), path, ["tokens"])


def learner(name: str, path: Path) -> None:
    from skl2onnx import to_onnx
    from sklearn import cluster, ensemble, linear_model, neural_network, pipeline, preprocessing, svm

    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 8)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] ** 2 > 0.5).astype(np.int64) + (x[:, 2] > 1)
    estimators = {
        "forest": lambda: ensemble.RandomForestClassifier(20, random_state=0),
        "boosting": lambda: ensemble.GradientBoostingRegressor(n_estimators=30, random_state=0),
        "logistic": lambda: pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression()),
        "svc": lambda: svm.SVC(probability=True, random_state=0),
        "kmeans": lambda: cluster.KMeans(4, n_init=1, random_state=0),
        "mlp": lambda: neural_network.MLPClassifier((32, 16), max_iter=60, random_state=0),
    }[name]()
    onnx.save(to_onnx(estimators.fit(x, y), x[:1]), path)
    np.savez(path.with_suffix(".npz"), X=x[:5])


def zoo() -> dict[str, Callable[[Path], None]]:
    """The function that writes each model, fast ones first."""
    exporters: dict[str, Callable[[Path], None]] = {
        f"sklearn_{n}": lambda p, n=n: learner(n, p) for n in ("forest", "boosting", "logistic", "svc", "kmeans", "mlp")
    }
    exporters |= {n: lambda p, n=n: recurrent(n, p) for n in ("lstm", "gru")}
    exporters |= {n: lambda p, n=n: language(n, p) for n in TRANSFORMERS}
    exporters |= {n: lambda p, n=n: vision(n, p) for n in sorted(VISION, key=lambda n: "vit" in n)}
    exporters |= {f"{n}_dynamo": lambda p, n=n: vision(n, p, dynamo=True) for n in ("resnet18", "mobilenet_v2")}
    return exporters


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name, make in zoo().items():
        path = folder / f"{name}.onnx"
        if path.with_suffix(".npz").exists():
            continue
        began = time.perf_counter()
        try:
            make(path)
        except Exception:
            traceback.print_exc(limit=-2)
            failed += 1
            print(f"{name}: NOT MADE", flush=True)
        else:
            print(f"{name}: {path.stat().st_size / 1e6:.1f} MB in {time.perf_counter() - began:.1f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
