"""Dispatch: moves tokens to their experts and the results back, by methods of equal results.

Each computes y = sum over kept choices of gate * expert(x), for the slots of `moe.slots`.
A dropped choice adds nothing. Dropout masks are functions of (seed, step, position) under each
method, so that no result depends on the devices; the methods draw different masks.

  einsum  one-hot products (GShard; the paper's): S*C*E*D multiplications a group, no gather.
  gather  rows by index, in both directions and in both passes, so that nothing scatters rows.
  ragged  tokens sorted by expert, no buffers and no padding: `jax.lax.ragged_dot`.
  masked  every expert on every token, times a gate that is mostly 0: E/K times the products, but
          no sort, no buffer and no gather.
  hopper  as ragged, by JAX's kernels for Hopper GPUs, which compute a row for its own expert alone.

Shapes in the letters of `widenet_jax.typing`.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from widenet_jax.nn.moe.experts import ExpertFfn
from widenet_jax.nn.moe.slots import capacity, choice_mask, spread
from widenet_jax.nn.rules import UNLIMITED, check_rules, hopper_rules
from widenet_jax.nn.settings import MoeSettings
from widenet_jax.nn.stack_settings import StackSettings
from widenet_jax.sharding import BATCH, constrain, device_kind, on_each_device
from widenet_jax.typing import Array, Routing

# Expert buffers [E, G, C, D]: experts over their mesh axis, groups over the others.
BUFFERS = P("expert", ("data", "fsdp"))

# A buffer of whole tiles can be reshaped without copying it (16 rows of bfloat16 on a TPU).
TILE = 16


# --- einsum ----------------------------------------------------------------------------------


def einsum_dispatch(x: Array, routing: Routing, experts: ExpertFfn, *, capacity: int) -> Array:
    """Dispatches by products with one-hot masks [G, S, E, C], which are made by comparisons."""
    slot, gate = slots_and_gates(routing, capacity)
    with jax.named_scope("dispatch"):
        taken = slot[..., None] == jnp.arange(capacity)  # [G, S, E, C]
        buffers = jnp.einsum("gsec,gsd->egcd", taken.astype(x.dtype), x)
    with jax.named_scope("experts"):
        outputs = experts.on_buffers(constrain(buffers, BUFFERS))
        outputs = constrain(outputs, BUFFERS)
    with jax.named_scope("combine"):
        weights = jnp.where(taken, gate[..., None], 0).astype(x.dtype)
        return jnp.einsum("gsec,egcd->gsd", weights, outputs)


def slots_and_gates(routing: Routing, capacity: int) -> tuple[Array, Array]:
    """Returns a token's slot at every expert, `capacity` for none, and its gate: [G, S, E] each."""
    E = routing.router_probs.shape[-1]
    chosen = choice_mask(routing.expert_index, E)  # [G, S, K, E]
    slot = jnp.where(chosen, routing.slot[..., None], capacity).min(axis=2)
    return slot, spread(routing.gate, routing.expert_index, E)


# --- gather ----------------------------------------------------------------------------------


def gather_dispatch(x: Array, routing: Routing, experts: ExpertFfn, *, capacity: int) -> Array:
    """Dispatches by index: gathers rows of x for the slots, then rows of outputs for the tokens."""
    G, S, D = x.shape
    E, K = routing.router_probs.shape[-1], routing.gate.shape[-1]
    C = -(-capacity // TILE) * TILE
    with jax.named_scope("dispatch"):
        # The rows are the slots of all experts: R = E*C.
        row = jnp.where(routing.slot < capacity, routing.expert_index * C + routing.slot, E * C)
        token = jnp.broadcast_to(jnp.arange(S, dtype=jnp.int32)[:, None], (G, S, K))
        empty = jnp.full((G, E * C), S, jnp.int32)
        token_of_row = put(empty, row.reshape(G, S * K), token.reshape(G, S * K))
        buffers = rows_to_slots(x, token_of_row, row).reshape(G, E, C, D)
        buffers = constrain(buffers.swapaxes(0, 1), BUFFERS)
    with jax.named_scope("experts"):
        # [E, G, C, D] -> [G, E*C, D], and from a device of the expert to one of the group.
        outputs = constrain(experts.on_buffers(buffers), BUFFERS)
        outputs = constrain(outputs.swapaxes(0, 1).reshape(G, E * C, D), BATCH)
    with jax.named_scope("combine"):
        return rows_to_tokens(outputs, routing.gate, token_of_row, row)


# --- Rows by index ---------------------------------------------------------------------------

# The experts' rows are flat arrays [G, R, D], in which an index of each side finds the other:
#
#   token_of_row  [G, R] int32: the token of each row; S, one past the last, where it is empty
#   row           [G, S, K] int32: the row of each choice; R where it was dropped
#
# Hence `rows_to_slots` and `sum_rows` are each other's transposes, and both gather forwards and
# backwards. JAX's own gradients would scatter.


@jax.custom_vjp
def rows_to_slots(x: Array, token_of_row: Array, row: Array) -> Array:
    """Copies tokens to their rows, [G, S, D] to [G, R, D]; zero where a row is empty."""
    del row
    return take_rows(x, token_of_row)


rows_to_slots.defvjp(
    lambda x, token_of_row, row: (rows_to_slots(x, token_of_row, row), row),
    lambda row, d_rows: (add_rows(d_rows, row), None, None),
)


@jax.custom_vjp
def sum_rows(rows: Array, token_of_row: Array, row: Array) -> Array:
    """Adds up the rows of each token, [G, R, D] to [G, S, D]."""
    del token_of_row
    return add_rows(rows, row)


sum_rows.defvjp(
    lambda rows, token_of_row, row: (sum_rows(rows, token_of_row, row), token_of_row),
    lambda token_of_row, dy: (take_rows(dy, token_of_row), None, None),
)


@jax.custom_vjp
def rows_to_tokens(outputs: Array, gate: Array, token_of_row: Array, row: Array) -> Array:
    """Adds up the rows of each token times their gates [G, S, K], [G, R, D] to [G, S, D].

    The gradient works row by row: dy at `token_of_row` gives both the gradient of the outputs and,
    multiplied with the outputs, the gradient of the gates, so that only scalars move back.
    """
    K = gate.shape[-1]
    rows = (take_rows(outputs, row[..., k]) for k in range(K))
    parts = (gate[..., k, None] * part.astype(jnp.float32) for k, part in enumerate(rows))
    return sum(parts).astype(outputs.dtype)


def _tokens_backward(saved: tuple, dy: Array) -> tuple[Array, Array, None, None]:
    outputs, gate, token_of_row, row = saved
    G, S, K = gate.shape
    dy_of_row = take_rows(dy, token_of_row)  # [G, R, D]
    nothing = jnp.zeros(outputs.shape[:2], gate.dtype)
    gate_of_row = put(nothing, row.reshape(G, S * K), gate.reshape(G, S * K))
    d_outputs = (gate_of_row[..., None] * dy_of_row.astype(jnp.float32)).astype(outputs.dtype)
    product = outputs.astype(jnp.float32) * dy_of_row.astype(jnp.float32)
    d_gate = take_rows(product.sum(-1), row.reshape(G, S * K)).reshape(G, S, K)
    return d_outputs, d_gate, None, None


rows_to_tokens.defvjp(lambda *args: (rows_to_tokens(*args), args), _tokens_backward)


def put(x: Array, index: Array, value: Array) -> Array:  # [G, R], [G, N], [G, N] -> [G, R]
    """Sets x[g, index[g, i]] = value[g, i]; skips an index one past the last."""
    return jax.vmap(lambda x, i, v: x.at[i].set(v, mode="drop"))(x, index, value)


def take_rows(x: Array, index: Array) -> Array:  # [G, R, ...], [G, N] -> [G, N, ...]
    """Returns x[g, index[g, i]]; zero where the index is one past the last."""
    return jax.vmap(lambda x, i: x.at[i].get(mode="fill", fill_value=0))(x, index)


def add_rows(rows: Array, row: Array) -> Array:  # [G, R, D], [G, S, K] -> [G, S, D]
    """Adds up the rows of each token's choices, in float32."""
    parts = [take_rows(rows, row[..., k]) for k in range(row.shape[-1])]
    return sum(part.astype(jnp.float32) for part in parts).astype(rows.dtype)


# --- ragged ----------------------------------------------------------------------------------


def ragged_dispatch(x: Array, routing: Routing, experts: ExpertFfn, *, capacity: int) -> Array:
    """Sorts each device's (token, choice) pairs by expert, dropped ones last.

    The rows of all groups on a device go through one product per expert. Nothing crosses devices
    but the experts' weights: here the mesh axis `expert` saves memory and no work.
    """
    # The random words of the dropout belong to (token, choice) pairs, not to sorted rows, so that
    # the masks do not depend on the devices.
    words = experts.dropout_words(routing.gate.shape)
    pair_words = tuple(of_layer and of_layer[0] for of_layer in words)  # [G, S, K] or None
    column_words = tuple(of_layer and of_layer[1] for of_layer in words)

    def local(
        replicated: tuple,
        x: Array,  # [G, S, D], the device's groups
        expert_index: Array,  # [G, S, K]
        gate: Array,  # [G, S, K]
        kept: Array,  # [G, S, K] bool
        pair_words: tuple[Array | None, Array | None],
    ) -> Array:  # [G, S, D]
        experts, column_words = replicated
        G, S, D = x.shape
        K, E = gate.shape[-1], experts.wi.shape[0]
        N = G * S * K
        expert = jnp.where(kept, expert_index, E).reshape(N)
        order = jnp.argsort(expert, stable=True)
        with jax.named_scope("dispatch"):
            kept_row = expert[order] < E
            token_of_row = jnp.where(kept_row, order // K, G * S)[None]  # [1, N]
            place = jnp.argsort(order)  # of each pair among the rows
            row = jnp.where(kept, place.reshape(kept.shape), N).reshape(1, G * S, K)
            rows = rows_to_slots(x.reshape(1, G * S, D), token_of_row, row)[0]
        with jax.named_scope("experts"):
            sizes = (expert[:, None] == jnp.arange(E)).sum(axis=0, dtype=jnp.int32)
            words = tuple(
                None if pairs is None else (pairs.reshape(N)[order], columns)
                for pairs, columns in zip(pair_words, column_words, strict=True)
            )
            # A row's gate may multiply its hidden entries, where these are the fewer.
            inside = experts.wi.shape[2] < D and not experts.output_activation
            gate_of_row = permute(gate.reshape(N), order, place) if inside else None
            outputs = experts.on_rows(rows, expert[order], sizes, words, gate_of_row)[None]
        with jax.named_scope("combine"):
            if inside:
                return sum_rows(outputs, token_of_row, row).reshape(G, S, D)
            gate = gate.reshape(1, G * S, K)
            return rows_to_tokens(outputs, gate, token_of_row, row).reshape(G, S, D)

    return on_each_device(
        local,
        (experts, column_words),
        x,
        routing.expert_index,
        routing.gate,
        routing.slot < capacity,
        pair_words,
    )


@jax.custom_vjp
def permute(x: Array, order: Array, inverse: Array) -> Array:
    """Returns x[order], with a gradient that gathers by the inverse permutation."""
    del inverse
    return x[order]


permute.defvjp(
    lambda x, order, inverse: (permute(x, order, inverse), inverse),
    lambda inverse, dy: (dy[inverse], None, None),
)


# --- hopper ----------------------------------------------------------------------------------


def hopper_dispatch(x: Array, routing: Routing, experts: ExpertFfn, *, capacity: int) -> Array:
    """Dispatches as `ragged_dispatch`, whose products are JAX's kernels for Hopper GPUs."""
    check_rules(hopper_rules(device_kind(), x.dtype.name))
    from widenet_jax.nn.moe.hopper import grouped_product

    return ragged_dispatch(x, routing, experts.replace(product=grouped_product), capacity=capacity)


# --- masked ----------------------------------------------------------------------------------


def masked_dispatch(x: Array, routing: Routing, experts: ExpertFfn, *, capacity: int) -> Array:
    """Applies every expert to every token; a choice without a slot has gate 0.

    Tokens stay on their devices and the experts' weights come to them: here the mesh axis `expert`
    saves memory and no work.
    """
    slot, gate = slots_and_gates(routing, capacity)
    with jax.named_scope("experts"):
        return experts.on_all(x, jnp.where(slot < capacity, gate, 0))


# --- Choice ----------------------------------------------------------------------------------

AUTO = "auto"
DISPATCHERS: dict[str, Callable[..., Array]] = {
    "einsum": einsum_dispatch,
    "gather": gather_dispatch,
    "ragged": ragged_dispatch,
    "masked": masked_dispatch,
    "hopper": hopper_dispatch,
}
ANYWHERE = ("einsum", "gather", "ragged", "masked")  # on every device, in every dtype

# Tokens a group up to which one-hot products beat gathers on a TPU: the cost of a product grows
# with the group, the cost of a gather does not. An example of ViT has 197 or 257 tokens, the
# paper's group 3136.
EINSUM_TOKENS = 512


# Share of selected experts from which all experts on all tokens cost no more than sorting the
# tokens, if none may be dropped: prices for v3 and v5e, see docs/log/experts_without_limit.md.
MASKED_SHARE = 1 / 4


def method_of(moe: MoeSettings, *, platform: str, group_tokens: int, train: bool) -> str:
    """Returns the method that `moe.dispatch` stands for; for "auto" the cheapest on the platform.

    On a TPU, without a limit of the capacity: `masked` from K/E = 1/4, else `ragged`. With one:
    `ragged` where every expert has a slot for every token, so that most slots are empty; `einsum`
    in groups of few tokens; else `gather`. Elsewhere `masked` without a limit, and `gather` with
    one: a CPU has no matrix unit for one-hots, and on CPUs and GPUs JAX computes `ragged_dot` as
    all experts' products of all rows, as `masked` does, which need not sort them.

    Args:
      moe: the settings of the layer.
      platform: "tpu", "gpu" or "cpu".
      group_tokens: S.
      train: whether the capacity is the one of training.
    """
    unlimited = moe.capacity_rule == UNLIMITED
    if moe.dispatch != AUTO:
        return moe.dispatch
    if platform != "tpu":
        return "masked" if unlimited else "gather"
    if unlimited:
        many = moe.num_selected_experts / moe.num_experts >= MASKED_SHARE
        return "masked" if many else "ragged"
    if capacity(group_tokens, moe, train=train) >= group_tokens:
        return "ragged"
    return "einsum" if group_tokens <= EINSUM_TOKENS else "gather"


def dispatch_methods(stack: StackSettings, num_tokens: int, *, platform: str) -> dict[str, str]:
    """Returns the method in each mode: {"training": "einsum", "evaluation": "ragged"}.

    Args:
      stack: the settings of the blocks; without experts there is no method.
      num_tokens: T of one example.
      platform: "tpu", "gpu" or "cpu".
    """
    if stack.ffn != "moe":
        return {}
    moe = stack.feed_forwards["moe"]
    group = {"platform": platform, "group_tokens": moe.examples_per_group * num_tokens}
    modes = {"training": True, "evaluation": False}
    return {mode: method_of(moe, **group, train=train) for mode, train in modes.items()}


def dispatch_text(methods: Mapping[str, str]) -> str:
    """Formats `dispatch_methods` as "einsum in training, ragged in evaluation"."""
    return ", ".join(f"{method} in {mode}" for mode, method in methods.items())
