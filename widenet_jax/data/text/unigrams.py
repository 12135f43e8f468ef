"""The entropy of word frequencies: what a model reaches that has learnt nothing else."""

import numpy as np


def unigram_entropy(counts: np.ndarray) -> float:
    """Returns the entropy, in nats, of ids that occur `counts` times: integers [V]."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())
