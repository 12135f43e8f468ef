"""Expert usage of a trained model over a source: load, entropy, drops, classes, agreement."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from widenet_jax.moe.statistics import summarize
from widenet_jax.tasks.classification import to_unit_range
from widenet_jax.tools.analysis.over_source import sums_over_source
from widenet_jax.tools.analysis.routing import routed_blocks, token_routing
from widenet_jax.typing import Array, PyTree
from widenet_jax.weights.trained import Trained


@dataclass(frozen=True)
class ExpertUsage:
    """Counts over a source, for L blocks with experts, V classes and E experts.

    Attributes:
      blocks: the blocks with experts.
      class_names: label k is class_names[k].
      sent: [L, V, E] (token, choice) pairs sent to each expert, by the class of the image.
      load: [L, E] share of the pairs sent to each expert.
      importance: [L, E] share of the gates.
      drop_rate: [L] share of the pairs that found no slot.
      router_entropy: [L] mean entropy of a token's probabilities, nats.
      together: [L, L, E, E] tokens whose first choice was e in block a and f in block b.
    """

    blocks: tuple[int, ...]
    class_names: tuple[str, ...]
    sent: np.ndarray
    load: np.ndarray
    importance: np.ndarray
    drop_rate: np.ndarray
    router_entropy: np.ndarray
    together: np.ndarray

    @property
    def load_entropy(self) -> np.ndarray:
        """[L] entropy of the load in nats; log(E) if all experts receive as many pairs."""
        return entropy(self.load)

    @property
    def by_class(self) -> np.ndarray:
        """[L, V, E] share of each class's pairs by expert; zeros for a class without images."""
        return self.sent / np.maximum(self.sent.sum(axis=-1, keepdims=True), 1)

    @property
    def even_tokens(self) -> float:
        """T = N_I N_p K / E: pairs for each expert in one block under an even load.

        WideNet, section 4: an expert learns from these. An expert that the blocks share sees as
        many in each of the L blocks.
        """
        return float(self.sent[0].sum() / self.sent.shape[-1])

    @property
    def agreement(self) -> np.ndarray:
        """[L, L] share of tokens with the same first choice in two blocks.

        Meaningful if the blocks share their experts.
        """
        return np.trace(self.together, axis1=2, axis2=3) / self.together[0, 0].sum()

    @property
    def chance(self) -> np.ndarray:
        """[L, L] agreement expected if the blocks chose independently, as often as they do."""
        first = self.first_choices
        return first @ first.T

    @property
    def first_choices(self) -> np.ndarray:
        """[L, E] share of the first choices by expert."""
        counts = np.einsum("aaee->ae", self.together)
        return counts / counts.sum(axis=-1, keepdims=True)

    @property
    def mutual_information(self) -> np.ndarray:
        """[L, L] mutual information of two blocks' first choices, divided by the smaller entropy.

        1 means that one block's choice follows from the other's. 0 means that they are
        independent, or that one block always chooses the same expert. Unlike `agreement`, this is
        meaningful for ViT-MoE too, whose blocks have different experts.
        """
        joint = self.together / self.together[0, 0].sum()
        alone = entropy(self.first_choices)
        L = len(self.blocks)
        information = alone[:, None] + alone[None, :] - entropy(joint.reshape(L, L, -1))
        smaller = np.minimum(alone[:, None], alone[None, :])
        return np.where(smaller > 1e-9, information / np.maximum(smaller, 1e-9), 0.0)


def entropy(shares: np.ndarray) -> np.ndarray:
    """Returns the entropy over the last axis in nats, with 0 log 0 = 0."""
    return -(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(axis=-1)


def measure_usage(trained: Trained) -> ExpertUsage:
    """Measures the model over the source and split that its config names.

    Raises:
      BadInputError: the model has no experts, or as `over_source.open_source`.
    """
    blocks = routed_blocks(trained.model)
    classes = len(trained.class_names)
    sums = sums_over_source(trained, partial(usage_sums, model=trained.model, classes=classes))
    sent, together = sums["sent"], sums["together"]
    shares = summarize(sums | {"load": sent.sum(axis=1)})
    return ExpertUsage(blocks, trained.class_names, sent=sent, together=together, **shares)


def usage_sums(
    params: PyTree, batch: dict[str, Array], *, model: nn.Module, classes: int
) -> dict[str, Array]:
    """Sums over the tokens of a batch's real images, in float32 (exact below 2^24)."""
    mask = batch["mask"]
    inputs = {"image": to_unit_range(batch["image"]), "mask": mask}
    _, routing = token_routing(model, params, inputs)
    E = routing.router_probs.shape[-1]
    real = mask[:, None, None]  # [B, T, K or E]
    pairs = jax.nn.one_hot(routing.expert_index, E) * real[..., None]  # [L, B, T, K, E]
    label = jax.nn.one_hot(batch["label"], classes)
    first = pairs[:, :, :, 0].reshape(len(pairs), -1, E)  # [L, tokens, E]
    probs = routing.router_probs
    token_entropy = -(probs * jnp.log(probs + 1e-30)).sum(axis=-1)  # [L, B, T]
    exact = partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    return {
        "sent": exact("bv,lbe->lve", label, pairs.sum(axis=(2, 3))),
        "dropped": (pairs * routing.dropped[..., None]).sum(axis=(1, 2, 3, 4)),
        "importance": (pairs * routing.gate[..., None]).sum(axis=(1, 2, 3)),
        "entropy": (token_entropy * mask[:, None]).sum(axis=(1, 2)),
        "tokens": mask.sum() * probs.shape[2],
        "together": exact("ane,bnf->abef", first, first),
    }


def as_json(usage: ExpertUsage) -> dict[str, Any]:
    """Returns the numbers by block, as `scripts/analyze.py` writes them."""
    names = (
        *("load", "importance", "load_entropy", "router_entropy", "drop_rate"),
        *("agreement", "mutual_information", "by_class"),
    )
    rows = {name: getattr(usage, name) for name in names}
    rows |= {"tokens": usage.sent.sum(axis=1), "tokens_if_even": usage.even_tokens}
    rows["agreement_by_chance"] = usage.chance
    listed = {key: np.asarray(value).round(6).tolist() for key, value in rows.items()}
    return {"blocks": list(usage.blocks), "class_names": list(usage.class_names), **listed}
