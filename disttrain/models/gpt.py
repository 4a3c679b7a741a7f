"""A decoder-only transformer: pre-norm, rotary positions, causal attention, tied embedding.

LayerNorm and linear layers have no bias. `SIZES` names common shapes by their number of parameters.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from disttrain.models.chunked_cross_entropy import chunked_cross_entropy
from disttrain.records.dataset import DataShape

SIZES = {
    "1M": {"layers": 5, "width": 128, "heads": 4},
    "3M": {"layers": 5, "width": 224, "heads": 7},
    "10M": {"layers": 8, "width": 320, "heads": 5},
    "30M": {"layers": 12, "width": 448, "heads": 7},
    "60M": {"layers": 6, "width": 640, "heads": 10},
    "124M": {"layers": 12, "width": 768, "heads": 12},
    "350M": {"layers": 24, "width": 1024, "heads": 16},
    "774M": {"layers": 36, "width": 1280, "heads": 20},
    "1.3B": {"layers": 24, "width": 2048, "heads": 16},
    "1.5B": {"layers": 48, "width": 1600, "heads": 25},
    "2.7B": {"layers": 32, "width": 2560, "heads": 32},
    "6.7B": {"layers": 32, "width": 4096, "heads": 32},
    "7B": {"layers": 34, "width": 4096, "heads": 32},
}
"""Shapes by name, for `model.size`: of GPT-2 (124M, 774M, 1.5B) and GPT-3 (350M, 1.3B, 2.7B, 6.7B; Brown et
al. 2020, arXiv:2005.14165, table 2.1) where they have the name. The number of parameters holds for tied
weights and a vocabulary of 50,304 tokens; up to 30M, of 256 tokens (bytes)."""

TAKES = ("tokens",)
_INIT_STD = 0.02
_ROTARY_BASE = 10_000.0
"""Longest wavelength of the rotary positions, in units of 2 pi tokens."""


class GPT(nn.Module):
    """GPT with the vocabulary of a language source.

    Maps token ids of shape (batch, length) to logits of shape (batch, length, padded vocabulary); logits of
    the padding are -infinity.

    Parameters
    ----------
    layers : blocks.
    width : width of the residual stream; a multiple of 2 * heads.
    heads : attention heads of a block.
    mlp_ratio : width of the MLP's hidden layer / `width`.
    dropout : share of activations set to 0.
    tie_weights : let the output layer share the embedding's weights.
    vocab_multiple : pads the vocabulary to a multiple, such as 128 for faster matrix products; loss and
        predictions stay.

    Raises
    ------
    ConfigError : the source is not a language source.
    """

    loss_chunk_tokens: int | None = None
    """Tokens whose logits exist at a time, where the model computes the loss."""

    def __init__(
        self,
        source: DataShape,
        *,
        layers: PositiveInt = 4,
        width: PositiveInt = 128,
        heads: PositiveInt = 4,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        tie_weights: bool = True,
        vocab_multiple: PositiveInt = 1,
    ) -> None:
        super().__init__()
        source.require("gpt", TAKES)
        vocabulary, hidden = source.classes, round(mlp_ratio * width)
        padded = -(-vocabulary // vocab_multiple) * vocab_multiple
        self.head_width = width // heads
        self.embed = nn.Embedding(padded, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, hidden, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = Head(width, vocabulary, padded)
        if tie_weights:
            self.head.weight = self.embed.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=_INIT_STD)
        # Each block adds two terms to the residual stream; the scale keeps its variance independent of depth.
        for block in self.blocks:
            assert isinstance(block, Block)
            for last in (block.attention.out, block.mlp.down):
                nn.init.normal_(last.weight, std=_INIT_STD / (2 * layers) ** 0.5)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits; with `targets`, (batch, length), their mean loss, `loss_chunk_tokens` at a time."""
        rotation = rotary_angles(tokens.shape[1], self.head_width, tokens.device)
        x = self.dropout(self.embed(tokens))
        for block in self.blocks:
            x = block(x, rotation)
        x = self.norm(x)
        if targets is None:
            return self.head(x)
        chunk = self.loss_chunk_tokens or targets.numel()
        return chunked_cross_entropy(
            x.flatten(0, 1), self.head.weight, targets.flatten(), chunk, self.head.vocabulary
        )

    def pipeline_stage(self, stage: int, stages: int) -> nn.Module:
        """Stage `stage` of `stages`, with this model's modules under their names; see `GPTStage`."""
        return GPTStage(self, stage, stages)


build = GPT


class GPTStage(nn.Module):
    """One stage of a GPT in a pipeline: contiguous blocks, of which the stages have equally many or one more.

    The first stage embeds token ids, (batch, length). The last one maps to logits, (batch, length,
    padded vocabulary). Between the stages are the activations of a block, (batch, length, width).
    """

    def __init__(self, model: GPT, stage: int, stages: int) -> None:
        super().__init__()
        self.head_width = model.head_width
        first, last = stage == 0, stage == stages - 1
        layers = len(model.blocks)
        self.embed = model.embed if first else None
        self.dropout = model.dropout
        own = range(layers * stage // stages, layers * (stage + 1) // stages)
        self.blocks = nn.ModuleDict({str(number): model.blocks[number] for number in own})
        self.norm = model.norm if last else None
        self.head = model.head if last else None

    def forward(self, x: Tensor) -> Tensor:
        rotation = rotary_angles(x.shape[1], self.head_width, x.device)
        if self.embed is not None:
            x = self.dropout(self.embed(x))
        for block in self.blocks.values():
            x = block(x, rotation)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


class Block(nn.Module):
    """Attention and MLP with residual connections; shapes (batch, length, width)."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.attention = Attention(width, heads, dropout)
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.mlp = MLP(width, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), rotation))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(
            rotate(q, rotation),
            rotate(k, rotation),
            v,
            is_causal=True,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    """Two linear layers with GELU between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Head(nn.Linear):
    """Output layer from (..., width) to logits of shape (..., padded), without bias.

    The logits beyond `vocabulary` are -infinity: their probabilities and gradients are 0.
    """

    def __init__(self, width: int, vocabulary: int, padded: int) -> None:
        super().__init__(width, padded, bias=False)
        self.vocabulary = vocabulary

    def forward(self, x: Tensor) -> Tensor:
        padding = self.out_features - self.vocabulary
        if not padding:
            return super().forward(x)
        # A bias costs the matrix product nothing; a slice or a mask would copy the logits or their gradient.
        bias = F.pad(x.new_zeros(self.vocabulary), (0, padding), value=-torch.inf)
        return F.linear(x, self.weight, bias)


def rotary_angles(length: int, head_width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position x frequency, each of shape (length, head_width / 2).

    Computed in every forward pass (microseconds): DDP would broadcast a buffer, and a model built on the meta
    device would lose it.
    """
    frequency = _ROTARY_BASE ** -(torch.arange(0, head_width, 2, device=device) / head_width)
    angle = torch.outer(torch.arange(length, device=device), frequency)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the pairs (x[i], x[i + half]) of the last dimension by the angles of their position.

    The product of a query and a key then depends only on their distance (Su et al. 2021, arXiv:2104.09864).
    """
    cosine, sine = (part.to(x.dtype) for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)
