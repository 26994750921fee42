#!/usr/bin/env python3
"""Compare two files of `coldpress logits` of the same ids: what another type of the weights costs.

usage: tools/compare_logits.py EXACT.npy OTHER.npy        needs: pip install numpy
Prints the mean and the largest Kullback-Leibler divergence of the next-token distributions (nats), and how often the most likely token
is the same.
"""
import sys

import numpy as np

exact, other = (np.load(path).astype(np.float64) for path in sys.argv[1:3])


def logarithms(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


p, q = logarithms(exact), logarithms(other)
divergence = (np.exp(p) * (p - q)).sum(axis=1)
same = (exact.argmax(axis=1) == other.argmax(axis=1)).mean()
print(f"{len(exact)} positions: mean KL {divergence.mean():.5f}, largest {divergence.max():.5f}, same best token {100 * same:.1f} %")
