"""Corpus ckpt: checkpoints of a real training run, six of about 358 MB each; version 1 holds the first five.

A small byte-level GPT is trained with AdamW in fp32 on Python sources. Each checkpoint has model.safetensors (fp32),
model.bf16.safetensors and optim.pt. Needs torch, numpy and safetensors.
"""

from __future__ import annotations

import argparse
import glob
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

TEXT_SIZE_MAX = 20_000_000
SYMBOLS = 256
HEAD_WIDTH = 64


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.n1 = nn.LayerNorm(width)
        self.n2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.o = nn.Linear(width, width)
        self.f1 = nn.Linear(width, 4 * width)
        self.f2 = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = (batch, length, width // HEAD_WIDTH, HEAD_WIDTH)
        query, key, value = (part.view(heads).transpose(1, 2) for part in self.qkv(self.n1(x)).split(width, 2))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.f2(functional.gelu(self.f1(self.n2(x))))


class Gpt(nn.Module):
    """A causal model of bytes."""

    def __init__(self, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.e = nn.Embedding(SYMBOLS, width)
        self.p = nn.Embedding(length, width)
        self.b = nn.ModuleList(Block(width) for _ in range(layers))
        self.n = nn.LayerNorm(width)
        self.h = nn.Linear(width, SYMBOLS, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        x = self.e(symbols) + self.p.weight[: symbols.shape[1]]
        for block in self.b:
            x = block(x)
        return self.h(self.n(x))


def read_text(root: Path) -> np.ndarray:
    """The Python sources under `root`, each ended by a zero byte, until there is enough."""
    text = bytearray()
    # glob and not Path.rglob: it passes hidden files over and follows links, which decides what the text is.
    for path in sorted(glob.glob(f"{root}/**/*.py", recursive=True)):  # noqa: PTH207
        try:
            text += Path(path).read_bytes() + b"\0"
        except OSError:
            continue
        if len(text) > TEXT_SIZE_MAX:
            break
    return np.frombuffer(bytes(text), np.uint8)


def train(text: np.ndarray, model: Gpt, optimizer: torch.optim.AdamW, batch: int, length: int) -> Iterator[int]:
    """Train for ever, one step for each number that is asked for."""
    numbers = np.random.default_rng(0)
    step = 0
    while True:
        starts = numbers.integers(0, len(text) - length - 1, batch)
        symbols = torch.from_numpy(np.stack([text[at : at + length + 1] for at in starts]).astype(np.int64))
        guesses = model(symbols[:, :-1]).reshape(-1, SYMBOLS)
        loss = functional.cross_entropy(guesses, symbols[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        yield step


def save(folder: Path, step: int, model: Gpt, optimizer: torch.optim.AdamW) -> None:
    folder.mkdir(parents=True)
    weights = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}, folder / "model.bf16.safetensors")
    torch.save({"step": step, "optimizer": optimizer.state_dict()}, folder / "optim.pt")


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("text", type=Path, help="a folder with Python sources, such as /usr/lib/python3")
    parser.add_argument("folder", type=Path, help="gets ckpt/v1 and ckpt/v2")
    parser.add_argument("--width", type=int, default=512, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--length", type=int, default=128, help="bytes in a sequence")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--first-step", type=int, default=60, help="steps before the first checkpoint")
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--count", type=int, default=6, help="checkpoints")
    return parser


def main() -> None:
    arguments = argument_parser().parse_args()
    v1, v2 = arguments.folder / "ckpt" / "v1", arguments.folder / "ckpt" / "v2"
    torch.manual_seed(0)
    text = read_text(arguments.text)
    model = Gpt(arguments.width, arguments.layers, arguments.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    wanted = [arguments.first_step + arguments.every * number for number in range(arguments.count)]
    for step in train(text, model, optimizer, arguments.batch, arguments.length):
        if step in wanted:
            save(v2 / f"step_{step:05d}", step, model, optimizer)
        if step == wanted[-1]:
            break
    shutil.copytree(v2, v1, ignore=shutil.ignore_patterns(f"step_{wanted[-1]:05d}"))


if __name__ == "__main__":
    main()
