"""The language model: a memory is as good as one long window; no token sees later ones."""

from functools import cache, partial

import compiled
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refuses

from widenet_jax.errors import BadInputError
from widenet_jax.language.model import LanguageModel
from widenet_jax.nn.attention import ATTENTIONS
from widenet_jax.nn.build import build_model

B, T, D, V = 3, 12, 16, 11
TOKENS = jax.random.randint(jax.random.key(0), (B, T), 0, V)
MODEL = {
    "name": "language_model",
    "embed_dim": D,
    "attention": {"name": "relative", "num_heads": 2, "head_dim": 5},
    "mlp_dim": 24,
    "activation": "relu",
    "kernel_init": "pre_norm",
    "norm_epsilon": 1e-5,
}


def model_of(depth: int = 3, **changes) -> LanguageModel:
    return build_model(MODEL | changes | {"loop": {"core": ((depth, 1),)}}, vocab_size=V)


def empty(model: LanguageModel, rows: int) -> dict[str, jax.Array]:
    memory = jnp.zeros((B, model.depth, rows, D))
    return {"memory": memory, "memory_length": jnp.zeros(B, jnp.int32)}


@cache
def params_of(depth: int = 3) -> dict:
    """Returns parameters with position biases that are not 0."""
    model = model_of(depth=depth)
    params = compiled.init(model, {"tokens": TOKENS, **empty(model, 0)})

    def moved(path: tuple, leaf: jax.Array) -> jax.Array:
        is_bias = path[-1].key in ("content_bias", "position_bias")
        return leaf + is_bias * jnp.linspace(-1, 1, leaf.size).reshape(leaf.shape)

    return jax.tree_util.tree_map_with_path(moved, params)


def run(model: LanguageModel, lengths: tuple[int, ...], rows: int, **inputs: jax.Array) -> tuple:
    """Returns the logits of TOKENS, read in windows of some lengths, and the last outputs."""
    carry, logits, start = empty(model, rows) | inputs, [], 0
    for length in lengths:
        tokens = TOKENS[:, start : start + length]
        start += length
        params = params_of(model.depth)
        outputs, _ = compiled.apply(model, params, {"tokens": tokens, **carry}, train=False)
        logits.append(outputs.pop("logits"))
        carry = outputs
    return np.concatenate(logits, axis=1), carry


@pytest.mark.parametrize(
    ("depth", "lengths"), [(3, (4, 4, 4)), pytest.param(2, (1,) * 12, marks=pytest.mark.slow)]
)
def test_windows_with_a_full_memory_equal_one_pass(depth: int, lengths: tuple[int, ...]):
    """Whatever stood in the memory before counts as empty."""
    model = model_of(depth=depth)
    whole, _ = run(model, (T,), 0)
    noise = jax.random.normal(jax.random.key(1), (B, depth, T, D))
    parts, carry = run(model, lengths, T, memory=noise)
    np.testing.assert_allclose(parts, whole, atol=1e-5)
    assert carry["memory_length"].tolist() == [T] * B


def test_a_start_that_depends_on_places_is_refused():
    """With a memory a token's place in its window is any; without, it is always the same."""
    section = MODEL | {"loop": {"core": ((1, 2),), "start": "noise", "inject": "linear"}}
    told = r"^config.model.loop.start=noise depends on a token.s place .*attention.name=full$"
    refuses(told, build_model, section, vocab_size=V)
    build_model(section | {"attention": {"name": "full", "num_heads": 4}}, vocab_size=V)


def test_a_short_memory_holds_the_latest_tokens():
    """Rows are block inputs: those of the first block are embeddings. The oldest are forgotten."""
    model = model_of()
    whole, _ = run(model, (T,), 0)
    parts, carry = run(model, (4, 4, 4), 6)
    assert carry["memory_length"].tolist() == [6] * B
    np.testing.assert_allclose(carry["memory"][:, 0], params_of()["embedding"][TOKENS[:, -6:]])
    np.testing.assert_allclose(parts[:, :8], whole[:, :8], atol=1e-5)  # nothing was forgotten yet
    assert np.abs(parts[:, 8:] - whole[:, 8:]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["relative", "switch_head"])
def test_loop_and_recomputation_change_nothing(attention: str):
    """Logits, memory and gradients, also of experts' losses, are those of unrolled blocks."""
    fields = {"attention": MODEL["attention"]}
    inputs = {"tokens": TOKENS, "memory": jax.random.normal(jax.random.key(1), (B, 2, 5, D))}
    inputs["memory_length"] = jnp.array([0, 3, 5])
    params = params_of(2)
    if attention == "switch_head":
        fields = {"attention": fields["attention"] | {"name": attention, "num_experts": 3}}
        params = compiled.init(model_of(2, **fields), {"tokens": TOKENS})

    def results(model: LanguageModel) -> tuple:
        def loss(params: dict) -> tuple:
            outputs, aux = model.apply({"params": params}, inputs, train=True)
            return (outputs["logits"] ** 2).sum() + 1e3 * aux.get(
                "loss", jnp.zeros(1)
            ).sum(), outputs

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)

    other = model_of(depth=2, unroll=False, remat="block", **fields)
    compare = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(compare, results(model_of(depth=2, **fields)), results(other))


def test_no_gradient_flows_through_the_memory():
    """A loss of a later window would not reach the parameters that made the memory."""
    model = model_of(depth=1)

    def later(params: dict) -> jax.Array:
        inputs = {"tokens": TOKENS, **empty(model, 2)}
        outputs, _ = model.apply({"params": params}, inputs, train=False)
        return outputs["memory"].sum()

    gradients = jax.jit(jax.grad(later))(params_of(1))
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(gradients))


def test_without_a_memory_loops_may_be_other_in_evaluation():
    """With relative attention the memory has no place for a further block."""
    tied = {"attention": "loops", "experts": "loops", "router": "experts", "norms": "loops"}
    loop = {"core": ((1, 2),), "tie": tied, "counts": {"eval": 3}}
    fields = MODEL | {"loop": loop}
    with pytest.raises(BadInputError, match="eval=3: the memory has a place for each block"):
        build_model(fields, vocab_size=V)
    fields |= {"attention": {"name": "full", "num_heads": 2}}
    model = build_model(fields, vocab_size=V)
    longer = build_model(fields | {"loop": loop | {"core": ((1, 3),)}}, vocab_size=V)
    params = compiled.init(model, {"tokens": TOKENS})
    ours, theirs = (
        compiled.apply(m, params, {"tokens": TOKENS}, train=False)[0] for m in (model, longer)
    )
    assert ours.keys() == {"logits"}
    np.testing.assert_allclose(ours["logits"], theirs["logits"], atol=1e-5)


@pytest.mark.slow
def test_embedding_and_output_start_as_in_the_paper():
    """Xavier uniform, and uniform within 1 / sqrt(D)."""
    model = model_of()
    params = compiled.initial(model, {"tokens": TOKENS, **empty(model, 0)})
    table, output = params["embedding"], params["output"]
    assert 0.9 < np.abs(table).max() / np.sqrt(6 / (V + D)) <= 1
    assert all(0.5 < np.abs(x).max() * np.sqrt(D) <= 1 for x in output.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"attention": {"name": "blind"}},
            "see earlier tokens; give .*=full or relative or switch_head",
        ),
        ({"attention": {"name": "ful"}}, "attention.name=ful"),
        ({"embed_dim": 15}, "config.model.embed_dim=15 must be even"),
    ],
)
def test_contradictions_are_refused(changes: dict, message: str, monkeypatch):
    monkeypatch.setitem(ATTENTIONS, "blind", nn.LayerNorm)  # it cannot be causal
    with pytest.raises(BadInputError, match=message):
        model_of(**changes)
