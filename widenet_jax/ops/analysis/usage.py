"""Usage of experts and of hidden units over a source.

Of experts: shares, entropy, drops, categories, agreement. A category is the class of a token's
image, or in texts a kind of token, see `token_kinds`. Of a dense feed-forward: how many of its
hidden units are active (sigma-MoE, figs. 1, 4 and 5).
"""

import string
import unicodedata
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widenet_jax.corpus.tokenizer import WORD_MARKS, Tokenizer
from widenet_jax.inference.over_source import real_token_mask, sums_over_source
from widenet_jax.nn.moe.slots import choice_mask, summarize
from widenet_jax.ops.analysis.captured import (
    MOE,
    active_counts,
    dense_blocks,
    routed_blocks,
    token_routing,
)
from widenet_jax.trained import Trained
from widenet_jax.typing import Array, PyTree

QUANTILES = (0.1, 0.5, 0.9)
# Statistics of an `ExpertUsage` in analysis.json, by their names there.
IN_JSON = (
    "load", "importance", "load_entropy", "router_entropy", "drop_rate", "sorted_shares",
    "co_occurrence", "agreement", "mutual_information",
)  # fmt: skip


@dataclass(frozen=True)
class ExpertUsage:
    """Counts over a source, for L blocks with experts, V categories of tokens and E experts.

    Attributes:
      blocks: the blocks with experts.
      category: what a category is: "class" (of the token's image) or "kind" (of token).
      names: of the categories.
      sent: [L, V, E] (token, choice) pairs sent to each expert, by category. A token has one class;
        it may be of several kinds.
      pairs: [L, E] pairs sent to each expert.
      importance: [L, E] share of the gates.
      drop_rate: [L] share of the pairs that found no slot.
      router_entropy: [L] mean entropy of a token's probabilities, nats.
      together: [L, L, E, E] tokens whose first choice was e in block a and f in block b.
      selected_together: [L, E, E] tokens for which a block chose both experts; on the diagonal, the
        tokens that chose the expert.
    """

    blocks: tuple[int, ...]
    category: str
    names: tuple[str, ...]
    sent: np.ndarray
    pairs: np.ndarray
    importance: np.ndarray
    drop_rate: np.ndarray
    router_entropy: np.ndarray
    together: np.ndarray
    selected_together: np.ndarray

    @property
    def load(self) -> np.ndarray:
        """[L, E] share of the pairs sent to each expert."""
        return self.pairs / self.pairs.sum(axis=-1, keepdims=True)

    @property
    def load_entropy(self) -> np.ndarray:
        """[L] entropy of the load in nats; log(E) if all experts receive as many pairs."""
        return entropy(self.load)

    @property
    def sorted_shares(self) -> np.ndarray:
        """[L, E] each block's `importance`, largest first (sigma-MoE, figs. 3 and 7)."""
        return -np.sort(-self.importance, axis=-1)

    @property
    def co_occurrence(self) -> np.ndarray:
        """[L, E, E] share of the tokens of expert e (row) that also chose f (sigma-MoE, fig. 6).

        The diagonal is 0, and so is the row of an expert that no token chose; another row adds up
        to K - 1.
        """
        E = self.selected_together.shape[-1]
        tokens = np.einsum("lee->le", self.selected_together)[..., None]
        return self.selected_together * (1 - np.eye(E)) / np.maximum(tokens, 1)

    @property
    def by_category(self) -> np.ndarray:
        """[L, V, E] share of each category's pairs by expert; zeros for one without tokens."""
        return self.sent / np.maximum(self.sent.sum(axis=-1, keepdims=True), 1)

    @property
    def frequency(self) -> np.ndarray:
        """[V] share of all tokens that each category has."""
        return self.sent[0].sum(axis=-1) / self.pairs[0].sum()

    @property
    def most_different(self) -> int:
        """Index into `blocks` of the block in which the categories differ most."""
        return int(self.by_category.std(axis=1).mean(axis=-1).argmax())

    @property
    def even_tokens(self) -> float:
        """T = N_I N_p K / E: pairs for each expert in one block under an even load.

        WideNet, section 4: an expert learns from these. An expert that the blocks share sees as
        many in each of the L blocks.
        """
        return float(self.pairs[0].mean())

    @property
    def agreement(self) -> np.ndarray:
        """[L, L] share of tokens with the same first choice in two blocks.

        Meaningful if the blocks share their experts.
        """
        return np.trace(self.together, axis1=2, axis2=3) / self.together[0, 0].sum()

    @property
    def mutual_information(self) -> np.ndarray:
        """[L, L] mutual information of two blocks' first choices, divided by the smaller entropy.

        1 means that one block's choice follows from the other's. 0 means that they are
        independent, or that one block always chooses the same expert. Unlike `agreement`, this is
        meaningful for ViT-MoE too, whose blocks have different experts.
        """
        joint = self.together / self.together[0, 0].sum()
        alone = entropy(np.einsum("aaee->ae", joint))
        L = len(self.blocks)
        information = alone[:, None] + alone[None, :] - entropy(joint.reshape(L, L, -1))
        smaller = np.minimum(alone[:, None], alone[None, :])
        return np.where(smaller > 1e-9, information / np.maximum(smaller, 1e-9), 0.0)

    def as_json(self) -> dict[str, Any]:
        """Returns the numbers by block, as `scripts/analyze.py` writes them."""
        what = self.category
        values = {name: getattr(self, name) for name in IN_JSON}
        values |= {f"by_{what}": self.by_category, "tokens": self.pairs}
        values |= {f"{what}_frequency": self.frequency, "tokens_if_even": self.even_tokens}
        values |= {"most_different_block": self.blocks[self.most_different]}
        listed = {key: np.asarray(value).round(6).tolist() for key, value in values.items()}
        return {"blocks": list(self.blocks), f"{what}_names": list(self.names), **listed}


def entropy(shares: np.ndarray) -> np.ndarray:
    """Returns the entropy over the last axis in nats, with 0 log 0 = 0."""
    return -(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(axis=-1)


def measure_usage(trained: Trained) -> ExpertUsage:
    """Measures the model over the source and split that its config names.

    Raises:
      BadInputError: the model has no experts, or as `over_source.open_source`.
    """
    blocks = routed_blocks(trained.model)
    sums = sums_over_source(trained, partial(usage_sums, trained))
    sent = sums["sent"]
    pairs, names, category = sent.sum(axis=1), trained.class_names, "class"
    if is_text(trained):
        counts = sent[0].sum(axis=-1)
        known = "tokenizer" in trained.info
        kinds = token_kinds(trained.tokenizer, counts) if known else byte_kinds(counts)
        sent = np.einsum("lve,kv->lke", sent, np.stack(list(kinds.values())))
        names, category = tuple(kinds), "kind"
    shares = summarize(sums | {"load": pairs})
    found = shares | {name: sums[name] for name in ("together", "selected_together")}
    del found["load"]
    return ExpertUsage(blocks, category, names, sent=sent, pairs=pairs, **found)


def usage_sums(
    trained: Trained, params: PyTree, batch: dict[str, Array]
) -> tuple[PyTree, dict[str, Array]]:
    """Returns the model's outputs, and sums over a batch's real tokens, in float32.

    They are exact below 2^24. `sent` [L, V, E] is by class of the image, or by token of the
    vocabulary.
    """
    inputs = trained.task.inputs(batch)
    outputs, routing = token_routing(trained.model, params, inputs)
    L, B, T, K = routing.expert_index.shape
    E = routing.router_probs.shape[-1]
    mask = real_token_mask(batch, inputs, (B, T))
    if is_text(trained):
        V, category = trained.info["vocab_size"], batch["tokens"][:, :T]
    else:
        V, category = len(trained.class_names), batch["label"][:, None]
    pairs = choice_mask(routing.expert_index, E) & mask[..., None, None]
    pairs = pairs.astype(jnp.float32)  # [L, B, T, K, E]
    first = pairs[:, :, :, 0].reshape(L, -1, E)  # [L, tokens, E]
    chosen = pairs.sum(axis=3).reshape(L, -1, E)
    dropped, probs = routing.dropped, routing.router_probs
    if trained.model.feed_forwards[MOE].router.experts_choose:  # E is an expert that took no token
        dropped &= routing.expert_index < E
    token_entropy = -(probs * jnp.log(probs + 1e-30)).sum(axis=-1)  # [L, B, T]
    exact = partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    each = jnp.broadcast_to(category, (B, T))
    return outputs, {
        "sent": jnp.zeros((L, V, E)).at[:, each].add(pairs.sum(axis=3)),
        "dropped": (dropped & mask[..., None]).sum(axis=(1, 2, 3)),
        "pairs": K * mask.sum(),
        "importance": (pairs * routing.gate[..., None]).sum(axis=(1, 2, 3)),
        "entropy": (token_entropy * mask).sum(axis=(1, 2)),
        "tokens": mask.sum(),
        "together": exact("ane,bnf->abef", first, first),
        "selected_together": exact("lne,lnf->lef", chosen, chosen),
    }


def is_text(trained: Trained) -> bool:
    """Tells whether the model reads texts."""
    return "vocab_size" in trained.info


@dataclass(frozen=True)
class ActiveUnits:
    """Counts over a source, for L blocks with a dense feed-forward of F hidden units.

    Attributes:
      blocks: those blocks.
      tokens: [L, F + 1] tokens with 0, 1, ..., F units whose ReLU is above 0.
    """

    blocks: tuple[int, ...]
    tokens: np.ndarray

    @property
    def width(self) -> int:
        """F."""
        return self.tokens.shape[-1] - 1

    @property
    def mean(self) -> np.ndarray:
        """[L] active units of a token, on average."""
        return self.tokens @ np.arange(self.width + 1) / self.tokens.sum(axis=-1)

    def quantile(self, share: float) -> np.ndarray:
        """[L] the least number of units that `share` of the tokens do not exceed."""
        below = self.tokens.cumsum(axis=-1) / self.tokens.sum(axis=-1, keepdims=True)
        return (below >= share - 1e-12).argmax(axis=-1)

    def as_json(self) -> dict[str, Any]:
        """Returns the numbers by block, as `scripts/analyze.py` writes them."""
        quantiles = {f"{100 * q:.0f}%": self.quantile(q).tolist() for q in QUANTILES}
        mean = self.mean.round(4).tolist()
        return {"blocks": list(self.blocks), "of": self.width, "mean": mean} | quantiles


def measure_active(trained: Trained) -> ActiveUnits:
    """Counts the active units over the evaluation split that the model's config names.

    Raises:
      BadInputError: as `over_source.open_source`.
    """
    sums = sums_over_source(trained, partial(active_sums, trained))
    return ActiveUnits(dense_blocks(trained.model), sums["tokens"])


def active_sums(
    trained: Trained, params: PyTree, batch: dict[str, Array]
) -> tuple[PyTree, dict[str, Array]]:
    """Returns the model's outputs, and `ActiveUnits.tokens` over a batch, in float32."""
    inputs = trained.task.inputs(batch)
    outputs, counts, F = active_counts(trained.model, params, inputs)
    L, B, T = counts.shape
    mask = real_token_mask(batch, inputs, (B, T)).astype(jnp.float32)
    tokens = jnp.zeros((L, F + 1)).at[jnp.arange(L)[:, None, None], counts].add(mask)
    return outputs, {"tokens": tokens}


# Ends of the bands of frequency, as ranks; the last band has no end.
BANDS = (10, 100, 1000, 10_000)


def token_kinds(tokenizer: Tokenizer, counts: np.ndarray) -> dict[str, np.ndarray]:
    """Returns for each kind which tokens of the vocabulary are of it: {name: bool [V]}.

    An ordinary token belongs to a band of frequency, by its rank in the counted text, and is
    punctuation (with symbols), holds a digit, or else starts or continues a word. Each special
    token is a kind. Kinds that do not occur are left out.

    Args:
      tokenizer: of V tokens.
      counts: [V], how often each token occurs.
    """
    occurs, special = counts > 0, tokenizer.special
    ordinary = occurs & ~special
    rank = np.empty(len(counts), int)
    rank[np.argsort(-np.where(ordinary, counts, 0), kind="stable")] = np.arange(1, len(counts) + 1)
    kinds = {}
    for low, high in zip((0, *BANDS), (*BANDS, len(counts)), strict=True):
        name = f"rank {low + 1:,} to {high:,}" if high in BANDS else f"rank above {low:,}"
        kinds[name] = ordinary & (low < rank) & (rank <= high)
    # Without the marks of where a word begins.
    pieces = [tokenizer.token(token).removeprefix("##") for token in range(len(counts))]
    texts = [piece.strip("".join(WORD_MARKS)) for piece in pieces]
    punctuation = np.array([bool(text) and all(map(is_punctuation, text)) for text in texts])
    digits = np.array([any(map(str.isdecimal, text)) for text in texts])
    word = ordinary & ~punctuation & ~digits
    kinds |= {
        "starts a word": word & tokenizer.starts_word,
        "continues a word": word & ~tokenizer.starts_word,
        "punctuation": ordinary & punctuation,
        "digits": ordinary & digits,
    }
    for token in np.flatnonzero(special & occurs):
        kinds[tokenizer.token(token)] = np.arange(len(counts)) == token
    return {name: members for name, members in kinds.items() if (members & occurs).any()}


def byte_kinds(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Returns for each kind which byte values are of it: {name: bool [256]}.

    Each value is of one kind; the bytes of a character outside ASCII, in UTF-8, are "other". Kinds
    that do not occur are left out.

    Args:
      counts: [256], how often each value occurs.
    """
    letters = {
        "small letters": string.ascii_lowercase,
        "capital letters": string.ascii_uppercase,
        "digits": string.digits,
        "white space": string.whitespace,
        "punctuation": string.punctuation,
    }
    kinds = {k: np.isin(range(len(counts)), list(text.encode())) for k, text in letters.items()}
    kinds["other"] = ~np.any(list(kinds.values()), axis=0)
    return {name: members for name, members in kinds.items() if counts[members].any()}


def is_punctuation(character: str) -> bool:
    """Tells whether a character is punctuation or a symbol, as Unicode has it."""
    return unicodedata.category(character)[0] in "PS"
