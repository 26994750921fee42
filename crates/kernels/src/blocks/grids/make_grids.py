"""Writes `grids.bin`, the lattice points that the IQ formats index, from the tables of the PyPI package gguf (0.19, `gguf.quants`,
which took them from ggml-common.h; MIT). Needs numpy.

For each grid in the order of GRIDS one little-endian u16 per entry: the position of each coordinate among the values that the
grid uses, in ascending order, first coordinate lowest; two bits each for grids of eight coordinates, three bits for four.
Run: python3 make_grids.py
"""

from pathlib import Path

import numpy as np
from gguf import quants

# IQ1_M shares the grid of IQ1_S.
GRIDS = [quants.IQ2_XXS, quants.IQ2_XS, quants.IQ2_S, quants.IQ3_XXS, quants.IQ3_S, quants.IQ1_S]


def packed(kind: type) -> np.ndarray:
    kind.init_grid()
    grid = kind.grid.reshape(kind.grid_shape)
    positions = np.searchsorted(np.array(kind.grid_map, dtype=np.float32), grid)
    bits = 16 // grid.shape[1] if grid.shape[1] == 8 else 3
    return (positions << (bits * np.arange(grid.shape[1]))).sum(axis=1).astype("<u2")


def main() -> None:
    Path(__file__).with_name("grids.bin").write_bytes(b"".join(packed(kind).tobytes() for kind in GRIDS))


if __name__ == "__main__":
    main()
