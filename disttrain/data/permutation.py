"""Pseudo-random permutations of sample indices: as a shuffled table, or computed by position."""

from __future__ import annotations

import math

import numpy as np

_ROUNDS = 6
"""Rounds of the Feistel network; four with ideal round functions are indistinguishable from random (Luby and
Rackoff, SIAM J. Comput. 17, 1988)."""


class TablePermutation:
    """A permutation of range(size) as a shuffled table: 4 bytes per index below 2^31 indices, else 8."""

    def __init__(self, size: int, seed: tuple[int, int]) -> None:
        self._table = np.arange(size, dtype=np.int32 if size <= np.iinfo(np.int32).max else np.int64)
        np.random.default_rng(seed).shuffle(self._table)

    def at(self, positions: np.ndarray) -> np.ndarray:
        """The indices at `positions`, of the same shape."""
        return self._table[positions]


class FeistelPermutation:
    """A permutation of range(size) computed by position, in constant memory.

    A generalized Feistel network permutes range(a * b), with a * b slightly above `size`; an index outside
    range(size) is permuted again until it is inside (Black and Rogaway, "Ciphers with Arbitrary Finite
    Domains", CT-RSA 2002, methods 3 and 2). The round function is the finalizer of SplitMix64 (Steele, Lea
    and Flood, OOPSLA 2014). It serves statistics, not secrecy.
    """

    def __init__(self, size: int, seed: tuple[int, int]) -> None:
        self._size = np.uint64(size)
        self._a = np.uint64(math.isqrt(size - 1) + 1)
        self._b = np.uint64(-(-size // int(self._a)))
        self._keys = np.random.SeedSequence(seed).generate_state(_ROUNDS, np.uint64).reshape(-1, 2)

    def at(self, positions: np.ndarray) -> np.ndarray:
        """The indices at `positions`, of the same shape."""
        indices = self._permute(positions.astype(np.uint64))
        while (outside := indices >= self._size).any():
            indices[outside] = self._permute(indices[outside])
        return indices.astype(np.int64)

    def _permute(self, values: np.ndarray) -> np.ndarray:
        """The Feistel network on uint64 values below a * b."""
        high, low = np.divmod(values, self._a)
        for even, odd in self._keys:
            low = (low + _mix(high + even) % self._a) % self._a
            high = (high + _mix(low + odd) % self._b) % self._b
        return high * self._a + low


def _mix(values: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64, on uint64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
