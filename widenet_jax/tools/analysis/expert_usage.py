"""How a trained model uses its experts over a source: load, entropy, drops, classes, agreement."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from widenet_jax.moe.balance import summarize
from widenet_jax.tasks.classification import to_unit_range
from widenet_jax.tools.analysis.over_source import sums_over_source
from widenet_jax.tools.analysis.routing import routed_blocks, token_routing
from widenet_jax.typing import Array, PyTree
from widenet_jax.weights.trained import Trained


@dataclass(frozen=True)
class ExpertUsage:
    """Counts over a source; L blocks that route, V classes, E experts.

    Attributes:
      blocks: which blocks route.
      class_names: label k is class_names[k].
      sent: [L, V, E] (token, choice) pairs sent to each expert, by the class of their image.
      kept: [L, E] pairs that found a slot.
      load: [L, E] shares of the pairs.
      importance: [L, E] shares of the gates.
      drop_rate: [L] share of the pairs.
      router_entropy: [L] mean entropy of a token's probabilities, nats.
      together: [L, L, E, E] tokens whose first choice was e in block a and f in block b.
    """

    blocks: tuple[int, ...]
    class_names: tuple[str, ...]
    sent: np.ndarray
    kept: np.ndarray
    load: np.ndarray
    importance: np.ndarray
    drop_rate: np.ndarray
    router_entropy: np.ndarray
    together: np.ndarray

    @property
    def load_entropy(self) -> np.ndarray:
        """[L] nats; log(E) where all experts get as much."""
        return entropy(self.load)

    @property
    def by_class(self) -> np.ndarray:
        """[L, V, E] shares of each class's pairs; zeros for a class without images."""
        return self.sent / np.maximum(self.sent.sum(axis=-1, keepdims=True), 1)

    @property
    def even_tokens(self) -> float:
        """T = N_I N_p K / E: the pairs of one block that each expert would see if all saw as many.

        WideNet, section 4: what an expert has to learn from. A shared expert sees them in each of
        the L blocks.
        """
        return float(self.sent[0].sum() / self.sent.shape[-1])

    @property
    def agreement(self) -> np.ndarray:
        """[L, L] share of tokens with the same first choice in two blocks.

        Means something where the blocks share their experts.
        """
        return np.trace(self.together, axis1=2, axis2=3) / self.together[0, 0].sum()

    @property
    def chance(self) -> np.ndarray:
        """[L, L] the agreement of blocks that choose as often as they do, but independently."""
        first = self.first_choices
        return first @ first.T

    @property
    def first_choices(self) -> np.ndarray:
        """[L, E] shares of the first choices."""
        counts = np.einsum("aaee->ae", self.together)
        return counts / counts.sum(axis=-1, keepdims=True)

    @property
    def mutual_information(self) -> np.ndarray:
        """[L, L] between the first choices of two blocks, as a share of the smaller entropy.

        1: one block's choice follows from the other's; 0: it says nothing of it, or there is only
        one. Does not ask that expert e is the same in both, so it also serves ViT-MoE.
        """
        joint = self.together / self.together[0, 0].sum()
        alone = entropy(self.first_choices)
        L = len(self.blocks)
        information = alone[:, None] + alone[None, :] - entropy(joint.reshape(L, L, -1))
        smaller = np.minimum(alone[:, None], alone[None, :])
        return np.where(smaller > 1e-9, information / np.maximum(smaller, 1e-9), 0.0)


def entropy(shares: np.ndarray) -> np.ndarray:
    """Of the last axis, nats; 0 log 0 = 0."""
    return -(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(axis=-1)


def measure_usage(trained: Trained) -> ExpertUsage:
    """Over the source and split that the model's config names.

    Raises:
      BadInputError: the model has no experts, or as `over_source.open_source`.
    """
    blocks = routed_blocks(trained.model)
    classes = len(trained.class_names)
    sums = sums_over_source(trained, partial(usage_sums, model=trained.model, classes=classes))
    sent = sums["sent"]
    statistics = {
        "load": sent.sum(axis=1),
        "dropped": sent.sum(axis=(1, 2)) - sums["kept"].sum(axis=1),
        "importance": sums["importance"],
        "entropy": sums["entropy"],
        "tokens": sums["tokens"],
    }
    return ExpertUsage(
        blocks=blocks,
        class_names=trained.class_names,
        sent=sent,
        kept=sums["kept"],
        together=sums["together"],
        **summarize(statistics),
    )


def usage_sums(
    params: PyTree, batch: dict[str, Array], *, model: nn.Module, classes: int
) -> dict[str, Array]:
    """Counts over the tokens of a batch's real images, float32 (exact below 2^24)."""
    mask = batch["mask"]
    _, routing = token_routing(model, params, to_unit_range(batch["image"]), mask)
    E = routing.probs.shape[-1]
    real = mask[:, None, None]  # [B, T, K or E]
    pairs = jax.nn.one_hot(routing.expert_index, E) * real[..., None]  # [L, B, T, K, E]
    label = jax.nn.one_hot(batch["label"], classes)
    first = pairs[:, :, :, 0].reshape(len(pairs), -1, E)  # [L, tokens, E]
    probs = routing.probs
    token_entropy = -(probs * jnp.log(probs + 1e-30)).sum(axis=-1)  # [L, B, T]
    exact = partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    return {
        "sent": exact("bv,lbe->lve", label, pairs.sum(axis=(2, 3))),
        "kept": (pairs * ~routing.dropped[..., None]).sum(axis=(1, 2, 3)),
        "importance": (pairs * routing.gate[..., None]).sum(axis=(1, 2, 3)),
        "entropy": (token_entropy * mask[:, None]).sum(axis=(1, 2)),
        "tokens": mask.sum() * probs.shape[2],
        "together": exact("ane,bnf->abef", first, first),
    }


def as_json(usage: ExpertUsage) -> dict[str, Any]:
    """Per block, and what `scripts/analyze.py` writes."""
    rows = {
        "load": usage.load,
        "importance": usage.importance,
        "load_entropy": usage.load_entropy,
        "router_entropy": usage.router_entropy,
        "drop_rate": usage.drop_rate,
        "tokens": usage.sent.sum(axis=1),
        "tokens_if_even": usage.even_tokens,
        "agreement": usage.agreement,
        "agreement_by_chance": usage.chance,
        "mutual_information": usage.mutual_information,
        "by_class": usage.by_class,
    }
    listed = {key: np.asarray(value).round(6).tolist() for key, value in rows.items()}
    return {"blocks": list(usage.blocks), "class_names": list(usage.class_names), **listed}
