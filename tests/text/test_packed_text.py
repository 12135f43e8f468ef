"""Packed rows train dense text models as the same instances do, each in its own row."""

import jax
import numpy as np
import pytest
from compiled import init
from refusals import refuses

from configs import defaults
from configs.variants import model_section
from widenet_jax.data.contract import ArraySpec, DataInfo
from widenet_jax.experiment import build_experiment, check_config
from widenet_jax.nn.build import build_model
from widenet_jax.text.data.instances import InstanceTransform
from widenet_jax.text.data.masking import MaskingRules
from widenet_jax.text.masked_lm import MaskedLm

V, T = 200, 48
RULES = MaskingRules(np.arange(V) % 3 > 0, np.arange(V) < 5, 4, 0.15, 7, 3)
TRANSFORM = InstanceTransform(RULES, T, cls_id=2, sep_id=3, pad_id=0)


def batches() -> tuple[dict, dict]:
    """Returns twelve instances in rows of their own, and packed into four rows."""
    rng, instances = np.random.default_rng(0), []
    for number in range(12):
        sentences = [rng.integers(5, V, rng.integers(1, 5)) for _ in range(1 + number % 3)]
        instances.append(TRANSFORM.instance(sentences, rng))
    rows = [instances[:4], instances[4:7], instances[7:8], instances[8:]]
    stack = lambda rows: {k: np.stack([row[k] for row in rows]) for k in rows[0]}  # noqa: E731
    alone = stack([TRANSFORM.sequence(one) for one in instances])
    return alone, stack([TRANSFORM.row(row) for row in rows])


@pytest.mark.parametrize(
    ("option", "told"), [("ffn=soft_moe", "ffn=soft_moe mixes all tokens of a row"), ("", "")]
)
def test_experts_that_mix_a_row_are_refused(option: str, told: str):
    """Documents of a row would see each other; in rows of their own they do not."""
    config = defaults.get_config(model_section(f"albert_tiny,{option}".strip(",")), "masked_lm")
    config.data.max_length = T
    for batch, line in zip(batches(), ("", told), strict=True):
        example = {name: ArraySpec(x.shape[1:], str(x.dtype)) for name, x in batch.items()}
        info = DataInfo(12, example, {"vocab_size": V})
        for check in (check_config, lambda *given: build_experiment(*given, jax.devices()[:1])):
            if line:
                refuses(f"^config.model.{line}.*without --pack", check, config, info)
            else:
                check(config, info)


def test_losses_and_gradients_are_those_of_unpacked_instances():
    fields = model_section("albert_tiny,depth=2")
    alone, packed = batches()
    found = []
    for batch in (alone, packed):
        example = {name: ArraySpec(x.shape[1:], str(x.dtype)) for name, x in batch.items()}
        task = MaskedLm(V, example, unigram_entropy=None)
        model = build_model(fields, **task.model_fields)
        params = init(model, task.inputs(alone))

        def loss(params, task=task, batch=batch, model=model):
            apply = lambda inputs, rngs: model.apply({"params": params}, inputs, train=True)  # noqa: E731
            return task.loss(apply, {**batch, **task.of_whole_batch(batch)}, {})

        found.append(jax.jit(jax.value_and_grad(loss, has_aux=True))(params))
    ((loss, metrics), grads), ((packed_loss, packed_metrics), packed_grads) = found
    np.testing.assert_allclose(packed_loss, loss, rtol=1e-5)
    for name, value in metrics.means.items():
        np.testing.assert_allclose(packed_metrics.means[name], value, rtol=1e-5, err_msg=name)
    for ours, theirs in zip(*map(jax.tree.leaves, (packed_grads, grads)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
