"""The entropy of word frequencies: the loss of a model that knows nothing but them."""

import numpy as np


def unigram_entropy(counts: np.ndarray) -> float:
    """Returns the entropy, in nats, of ids that occur `counts` times: integers [V]."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())
