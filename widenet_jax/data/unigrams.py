"""The entropy of word frequencies: the loss of a model that knows nothing but them."""

import math

import numpy as np

from widenet_jax.data.contract import Stream

READ = 64  # windows at once


def unigram_entropy(counts: np.ndarray) -> float:
    """Returns the entropy, in nats, of ids that occur `counts` times: integers [V]."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def unigram_bits(stream: Stream) -> float:
    """Returns the entropy, in bits per byte, of all tokens that a stream's windows predict."""
    counts = np.zeros(stream.info["vocab_size"], np.int64)
    for first in range(0, len(stream), READ):
        windows = stream.read_windows(np.arange(first, min(first + READ, len(stream))))
        counts += np.bincount(windows[:, 1:].ravel(), minlength=len(counts))
    return unigram_entropy(counts) / stream.bytes_per_token / math.log(2)
