"""No logit of a language model depends on later tokens, with any of its parts."""

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.variants import model_section
from widenet_jax.errors import BadInputError
from widenet_jax.nn.build import build_model, parameter_shapes
from widenet_jax.nn.moe.routers import ROUTERS

T, V, D = 8, 13, 16
# One row for each place from which on its tokens are changed.
TOKENS = jax.random.randint(jax.random.key(0), (T, T), 0, V)
CHANGED = jnp.where(jnp.arange(T) > jnp.arange(T)[:, None], (TOKENS + 5) % V, TOKENS)
# Whose choice of experts in training balances the tokens of a sequence or of the batch.
SINKHORN = ("sinkhorn", "sinkhorn_released")


def variant(name: str, **limit: object) -> dict:
    """Returns `config.model` of a size variant of 1 narrow block with dropout.

    `limit`: fields of the experts, which have a limited capacity then.
    """
    model = model_section(f"tiny,depth=1,dropout=0.2,{name}")
    own = {"rope": 0.5, "qk_norm": True} if "attention=" in name else {}
    own |= {"num_experts": 3} if "switch_head" in name else {}
    attention = {"name": model["attention"]["name"], "num_heads": 2, "head_dim": 4}
    if limit:
        model["moe"] |= {"capacity_rule": "paper", "examples_per_group": 1} | limit
    return model | {"embed_dim": D, "attention": attention | own}


def logits(section: dict, tokens: jax.Array, *, train: bool) -> np.ndarray:
    model = build_model(section, vocab_size=V)
    memory = jax.random.normal(jax.random.key(1), (T, 1, 4, D))
    inputs = {"tokens": tokens, "memory": memory, "memory_length": jnp.arange(T) % 5}
    rng = np.random.default_rng(0)
    shapes = parameter_shapes(model, jax.eval_shape(lambda: inputs))
    params = jax.tree.map(lambda s: np.float32(0.3 * rng.normal(size=s.shape)), shapes)
    streams = ("dropout", "router") if train else ()
    rngs = {stream: jax.random.key(2) for stream in streams}
    outputs, _ = compiled.apply(model, params, inputs, train=train, rngs=rngs)
    return np.asarray(outputs["logits"])


QUICK = ["ffn=dense", "ffn=top_k,num_active=6", "ffn=product_key"]
QUICK += ["attention=switch_head,ffn=moe,router=sigmoid", "ffn=moe,router=sinkhorn"]
VARIANTS = ["attention=full,ffn=moe,router=top_k", QUICK[3]]
VARIANTS += [f"ffn=moe,router={name}" for name in ROUTERS if name != "expert_choice"]
VARIANTS += ["ffn=product_key,weights=softmax", "ffn=product_key,combine_heads=before", *QUICK[:3]]
MARKED = [v if v in QUICK else pytest.param(v, marks=pytest.mark.slow) for v in VARIANTS]


@pytest.mark.parametrize("name", MARKED)
def test_logits_ignore_later_tokens(name: str):
    """In training, with dropout and noise; with Sinkhorn's balance, in evaluation alone."""
    train = not name.endswith(SINKHORN)
    before, after = (logits(variant(name), tokens, train=train) for tokens in (TOKENS, CHANGED))
    seen = np.arange(T) <= np.arange(T)[:, None]
    np.testing.assert_allclose(after[seen], before[seen], atol=1e-5)
    assert np.abs(after - before)[~seen].max() > 1e-3


def test_later_tokens_take_no_slots():
    """Served in order; other orders, with which they may, are refused unless they are asked for."""
    limit = {"capacity_factor": 0.5, "capacity_factor_eval": 0.5}
    section = variant("ffn=moe,router=sigmoid", **limit)
    seen = np.arange(T) <= np.arange(T)[:, None]
    before, after = (logits(section, tokens, train=False) for tokens in (TOKENS, CHANGED))
    np.testing.assert_allclose(after[seen], before[seen], atol=1e-5)
    section["moe"]["priority"] = "batch_prioritized"
    with pytest.raises(BadInputError, match=r"or moe\.priority=token_order"):
        build_model(section, vocab_size=V)
    section["allow_mixing"] = True
    before, after = (logits(section, tokens, train=False) for tokens in (TOKENS, CHANGED))
    assert np.abs(after - before)[seen].max() > 1e-3
    section["moe"]["capacity_rule"] = "unlimited"
    assert not build_model(section | {"allow_mixing": False}, vocab_size=V).allow_mixing
