"""A plain PyTorch training loop without disttrain: the baseline of `overhead.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY, CONTEXT, SAMPLES = 256, 64, 512


class Net(nn.Module):
    """A small causal transformer; `width` sets the duration of a step."""

    def __init__(self, width: int = 128, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(tokens), mask=self.mask, is_causal=True))


def dataset() -> TensorDataset:
    tokens = torch.randint(VOCABULARY, (SAMPLES, CONTEXT + 1), generator=torch.Generator().manual_seed(0))
    return TensorDataset(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


class Loop:
    """A plain training loop; the caller may wrap `model` in DDP."""

    def __init__(self, model: nn.Module, batch: int, rank: int, world: int, lr: float) -> None:
        self.model = model
        matrices = [p for p in model.parameters() if p.dim() >= 2]
        vectors = [p for p in model.parameters() if p.dim() < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices}, {"params": vectors}],
            lr=lr,
            betas=(0.9, 0.95),
            weight_decay=0.0,
            fused=True,
        )
        self.batches = iter(DataLoader(dataset(), batch_sampler=Order(batch, rank, world)))

    def step(self) -> Tensor:
        inputs, targets = next(self.batches)
        loss = F.cross_entropy(self.model(inputs).flatten(0, -2), targets.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


class Order:
    """Endless seeded permutations, distributed over the ranks batch by batch."""

    def __init__(self, batch: int, rank: int, world: int) -> None:
        self.batch, self.rank, self.world = batch, rank, world

    def __iter__(self) -> Iterator[list[int]]:
        epoch = 0
        while True:
            order = np.random.default_rng([0, epoch]).permutation(SAMPLES).reshape(-1, self.world, self.batch)
            yield from order[:, self.rank].tolist()
            epoch += 1
