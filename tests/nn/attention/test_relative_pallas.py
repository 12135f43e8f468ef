"""The kernel of relative attention, interpreted on a CPU, against the formula in float64."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from widenet_jax.errors import BadInputError
from widenet_jax.nn.attention import relative, relative_pallas
from widenet_jax.nn.attention.distances import distance_basis
from widenet_jax.ops.plan import compile as planning
from widenet_jax.ops.plan.topology import parse_topology
from widenet_jax.sharding import build_mesh

B, EINSUM = 3, jnp.einsum


def operands(T: int, M: int, N: int, H: int, dtype: str, *, D: int = 64) -> list[jax.Array]:
    """Returns operands; three rows have an empty, a partial and a full memory."""
    S, waves = T + M, jnp.asarray(distance_basis(T + M, D)[0])
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v = (jax.random.normal(keys[i], (B, n, N, H)) for i, n in enumerate((T, S, S)))
    terms = 0.3 * jax.random.normal(keys[3], (B, N, T, waves.shape[1]))
    arrays = [x.astype(dtype) for x in (2 * H**-0.5 * q, k + 1, v, terms, waves)]
    return [*arrays, jnp.array([M, M // 3, 0])]


def exact(q, k, v, terms, waves, first, d_out) -> list[np.ndarray]:
    """Returns output and gradients in float64, from the rules of differentiation."""
    q, k, v, terms, waves, d_out = (
        np.asarray(x, np.float64) for x in (q, k, v, terms, waves, d_out)
    )
    scores = np.einsum("bqnh,bknh->bnqk", q, k) + np.einsum("bnqr,kr->bnqk", terms, waves)
    place, M = np.arange(k.shape[1]), k.shape[1] - q.shape[1]
    seen = place <= np.arange(M, k.shape[1])[:, None]
    seen = seen & (place >= np.asarray(first)[:, None, None])
    scores = np.where(seen[:, None], scores, -1e30)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    d_weights = np.einsum("bqnh,bknh->bnqk", d_out, v)
    d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True))
    return [
        np.einsum("bnqk,bknh->bqnh", weights, v),
        np.einsum("bnqk,bknh->bqnh", d_scores, k),
        np.einsum("bnqk,bqnh->bknh", d_scores, q),
        np.einsum("bnqk,bqnh->bknh", weights, d_out),
        np.einsum("bnqk,kr->bnqr", d_scores, waves),
    ]


def both(function, arrays: list[jax.Array], d_out: jax.Array) -> list[jax.Array]:
    """Returns output, and gradients of queries, keys, values and the queries' terms."""
    *arrays, waves, first = arrays

    @jax.jit
    def run(arrays, waves, first, d_out):
        out, pull = jax.vjp(lambda *x: function(*x, waves, first), *arrays)
        return [out, *pull(d_out)]

    return run(arrays, waves, first, d_out)


def kernel(*arrays: jax.Array) -> jax.Array:
    return relative_pallas.kernel_attend(*arrays, interpret=True)


def exact_sums(product, *arrays: jax.Array, preferred_element_type=None, **options) -> jax.Array:
    """An einsum of bfloat16 with a float32 result, which XLA's CPU backend lacks; as exact."""
    if preferred_element_type:
        arrays = [x.astype(preferred_element_type) for x in arrays]
    return EINSUM(product, *arrays, **options)


def errors(found: list, expected: list) -> list[float]:
    """Returns relative errors, in the root mean square."""
    pairs = zip(found, expected, strict=True)
    return [np.linalg.norm(np.float64(a) - b) / np.linalg.norm(b) for a, b in pairs]


SIZES = [((64, 0), (64, 64), (256, 256), (512, 512), (256, 1024)), ((2, 64), (4, 64), (2, 128))]
CASES = [  # T, M, N, H and the queries of a block
    pytest.param(64, 32, 2, 64, 32, marks=pytest.mark.slow),
    *(
        pytest.param(*size, *heads, 256, marks=pytest.mark.slow)
        for size, heads in itertools.product(*SIZES)
    ),
]


@pytest.mark.parametrize(("T", "M", "N", "H", "block"), CASES)
def test_at_least_as_exact_as_xla_in_bfloat16(monkeypatch, T, M, N, H, block):
    """Output and all gradients; rows with an empty, a partial and a full memory."""
    monkeypatch.setattr(relative_pallas, "BLOCK", block)
    monkeypatch.setattr(jnp, "einsum", exact_sums)
    arrays = operands(T, M, N, H, "bfloat16")
    d_out = jax.random.normal(jax.random.key(1), arrays[0].shape).astype("bfloat16")
    right = exact(*arrays, d_out)
    of = {}
    for name, function in (("pallas", kernel), ("xla", relative.attend_xla)):
        found = both(function, arrays, d_out)
        assert all(x.dtype == jnp.bfloat16 and bool(jnp.isfinite(x).all()) for x in found)
        of[name] = errors(found, right)
    assert all(ours <= theirs for ours, theirs in zip(of["pallas"], of["xla"], strict=True))


def test_equals_the_formula_in_float32(monkeypatch):
    """Two heads and two blocks of queries, output and all gradients."""
    monkeypatch.setattr(relative_pallas, "BLOCK", 8)
    arrays = operands(16, 8, 2, 64, "float32", D=8)
    d_out = jax.random.normal(jax.random.key(1), arrays[0].shape)
    assert max(errors(both(kernel, arrays, d_out), exact(*arrays, d_out))) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v4-8", "v5e-4", "v5p-8", "v6e-4"])
def test_a_layer_compiles_for_tpus(monkeypatch, name: str):
    """WT-B's, forward and backward, sharded; and its evaluation, whose memory is 4 T."""
    pytest.importorskip("libtpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # libtpu aborts on a flag that it does not know
    mesh = build_mesh({"fsdp": 2, "expert": 1}, planning.tpu_devices(parse_topology(name)))
    batch, whole = (NamedSharding(mesh, spec) for spec in (P(("data", "fsdp")), P()))
    layer = relative.RelativeAttention(16, dtype="bfloat16", implementation="pallas")

    def of(M: int, *, backward: bool) -> str:
        shapes = [(8, 512, 1024), (8, M, 1024)]
        x, memory = (jax.ShapeDtypeStruct(s, jnp.bfloat16, sharding=batch) for s in shapes)

        def loss(params, x, memory):
            lengths = jnp.full(8, M)
            y, _ = layer.apply(params, x, memory=memory, memory_length=lengths, train=False)
            return y.astype(jnp.float32).sum()

        def init(x, memory):
            options = {"memory": memory, "memory_length": jnp.full(8, M), "train": False}
            return layer.init(jax.random.key(0), x, **options)

        with jax.set_mesh(mesh):
            params = jax.tree.map(
                lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=whole),
                jax.eval_shape(init, x, memory),
            )
            run = jax.jit(jax.grad(loss) if backward else loss)
            return planning.compile_lowered(run.lower(params, x, memory)).hlo

    training = of(512, backward=True)
    assert "relative_forward" in training and "relative_backward" in training
    assert "relative_forward" in of(2048, backward=False)
    if name == "v4-8":
        with pytest.raises(BadInputError, match="M \\+ T of at most 1,024, here 1,536; use auto"):
            of(1024, backward=True)


@pytest.mark.slow
def test_sharded_over_devices_as_on_one():
    """A batch of 8 on 8 devices, under jit, by the kernel that the layer chooses by name."""
    *arrays, waves, _ = operands(128, 128, 2, 64, "float32")
    arrays = [jnp.tile(x, (3, 1, 1, 1))[:8] for x in arrays] + [waves, jnp.arange(8) * 16]
    d_out = jnp.ones(arrays[0].shape)

    def run(*x: jax.Array) -> jax.Array:
        return relative.attend(*x, implementation="pallas")

    alone = both(run, arrays, d_out)
    with jax.set_mesh(build_mesh({"fsdp": 2, "expert": 1}, jax.devices())):
        spread = both(run, arrays, d_out)
    assert len(spread[0].sharding.device_set) == 8
    for ours, theirs in zip(spread, alone, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_layer_s_parameters_have_the_same_gradients():
    """All projections and both biases, over two blocks of queries, in float32."""
    T, M, D = 512, 128, 128
    x, memory = (jax.random.normal(jax.random.key(i), (2, n, D)) for i, n in enumerate((T, M)))
    lengths = jnp.array([0, 100])

    def loss(layer, params, x, memory):
        y, _ = layer.apply(params, x, memory=memory, memory_length=lengths, train=False)
        return jnp.sin(y).sum()

    layers = [relative.RelativeAttention(2, implementation=name) for name in ("xla", "pallas")]
    options = {"memory": memory, "memory_length": lengths, "train": False}
    params = jax.jit(lambda: layers[0].init(jax.random.key(2), x, **options))()
    exact, ours = (
        jax.jit(jax.grad(functools.partial(loss, layer), (0, 1, 2)))(params, x, memory)
        for layer in layers
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), ours, exact)


@pytest.mark.parametrize(
    ("T", "M", "N", "H"), [(128, 0, 10, 41), (64, 64, 2, 64), (640, 0, 2, 64), (512, 2176, 2, 64)]
)
def test_shapes_that_the_kernel_does_not_take(T: int, M: int, N: int, H: int):
    query, key = jnp.zeros((1, T, N, H)), jnp.zeros((1, M + T, N, H))
    with pytest.raises(
        BadInputError, match=rf"multiples of 128, T of .* after M = {M}, in float32"
    ):
        relative.attend(query, key, key, None, None, None, implementation="pallas")
