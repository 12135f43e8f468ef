"""Data: sources of examples, transforms of one example, batches for one host.

- A **source** gives examples by index (`contract.Source`).
- A **transform** maps (example, generator) to a dict of arrays (`contract.Transform`).
  `specs` names the sources and the transforms of each task.
- **Blocks** stack the arrays of a few examples of one step, whatever their keys; `pipeline` reads
  blocks with threads or processes and joins them into batches.

The record at (step, position) is a pure function of (seed, step); augmentation and masking are pure
functions of (seed, epoch, record). So nothing about the data is stored in a checkpoint, and any
number of hosts and workers sees the same global batches.
"""

from widenet_jax.data.contract import ArraySpec, Batch, Data, DataInfo, Example, Source, Transform

__all__ = ["ArraySpec", "Batch", "Data", "DataInfo", "Example", "Source", "Transform"]
