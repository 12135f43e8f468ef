"""Every config builds, every field of it is read, and every name is spelt correctly."""

import dataclasses
import importlib
import re
from pathlib import Path

import jax
import pytest
from ml_collections import ConfigDict

from widenet_jax.config.durations import to_steps
from widenet_jax.config.fields import fields_of, override
from widenet_jax.config.files import NO_EXPERIMENTS
from widenet_jax.experiment import build_task, check_batch, input_spec
from widenet_jax.nn.build import build_model, parameter_shapes
from widenet_jax.ops.plan.planner import data_info
from widenet_jax.ops.plan.printed import FINETUNING, PRETRAINING
from widenet_jax.optim.build import build_optimizer
from widenet_jax.sharding import build_mesh

ROOT = Path(__file__).parents[1]
CONFIGS = {
    "digits": ["", "vit_tiny", "vit_moe_tiny,ffn_blocks=last_1", "widenet_tiny,share_norms=true"],
    "tiny_imagenet": ["", "vit_s", "widenet_s,preset=authors_code"],
    "finetune": ["", "vit_s", "widenet_b"],
    "cifar10": ["", "widenet_s", "widenet_mini", "vit_s", *(row.variant for row in FINETUNING)],
    "imagenet": [
        "widenet_b",
        "vit_moe_b,experts=8",
        "widenet_b,routing_groups=3",
        "widenet_b,examples_per_group=1",
        "widenet_b,preset=authors_code",
        "vit_moe_b,ffn_blocks=last_2",
        *(row.variant for row in PRETRAINING),
    ],
}
TEXT = {
    "text_pretrain": ["", "albert_s", "widenet_4,examples_per_group=1", "widenet_8_s"],
    "text_tiny": ["", "widenet_4_tiny"],
    "glue": ["mnli,model=widenet_4", "sst2,model=bert_s", "stsb,model=albert_tiny"],
    "squad": ["v1,model=widenet_4_s", "v2,model=albert"],
    "language_model": ["", "tiny,preset=top_k", "byte_s,ffn=product_key"],
}
CASES = [
    pytest.param(name, variant, marks=[pytest.mark.slow] if place > 2 else [])
    for name, variants in (CONFIGS | TEXT).items()
    for place, variant in enumerate(variants)
]


def get_config(name: str, variant: str) -> ConfigDict:
    module = importlib.import_module(f"configs.{name}")
    return module.get_config(variant) if variant else module.get_config()


def test_every_config_is_here():
    here = {path.name for path in (ROOT / "configs").glob("*.py")} - NO_EXPERIMENTS
    assert here == {f"{name}.py" for name in (*CONFIGS, *TEXT)}


@pytest.mark.parametrize(
    ("name", "variant", "rates"),
    [
        ("imagenet", "widenet_b", (None, 0.0)),  # the layer takes the model's rate
        ("text_pretrain", "widenet_4", (None, 0.0)),
        # After the experts' sum; after their hidden layer where the variant asks for it.
        ("language_model", "byte_s,preset=sigma_moe", (0.0, 0.3)),
        ("language_model", "byte_s,preset=switch", (0.3, 0.3)),
        ("language_model", "wt_s,preset=standard_dropout", (0.3, 0.3)),
    ],
)
def test_fields_of_the_model_reach_the_experts(name: str, variant: str, rates: tuple):
    config = get_config(name, variant)
    fields = {"activation": "gelu", "dropout": 0.3, "kernel_init": "truncated_normal"}
    flags = [f"--config.model.{field}={value}" for field, value in fields.items()]
    model = override(config, flags).model
    assert (model.moe.get("dropout"), model.moe.output_dropout) == rates
    assert model.moe.activation == "gelu"
    own = "switch" if "switch" in variant else "truncated_normal"
    assert model.moe.get("kernel_init", model.kernel_init) == own
    override(config, ["--config.model.moe.activation=relu"])
    assert (model.activation, model.moe.activation) == ("gelu", "relu")


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_builds(name: str, variant: str):
    """With at most six blocks; tests/config counts the parameters of the full depth."""
    config = get_config(name, variant)
    sizes = {"batch_size": config.batch_size, "num_examples": 50_000}
    total = to_steps(config.duration, field="config.duration", **sizes)
    for section in (config.evaluation, config.checkpoint):
        assert to_steps(section.every, field="every", **sizes) <= total
    task = build_task(config, data_info(config, num_examples=50_000, num_classes=10))
    model = build_model(config.model, **task.model_fields)
    core = tuple((min(layers, 6), min(loops, 6)) for layers, loops in model.loop.core)
    shallow = model.clone(loop=dataclasses.replace(model.loop, core=core))
    shapes = parameter_shapes(shallow, input_spec(task))
    build_optimizer(
        config.optimizer, params_or_shapes=shapes, depth=shallow.depth, total_steps=total, **sizes
    )
    check_batch(config, model, task, build_mesh({"fsdp": 1, "expert": 1}, jax.devices()[:1]))


@pytest.mark.parametrize(
    ("name", "variant", "num_examples", "steps"),
    [
        ("digits", "", 1437, 112),  # 5 of 100 epochs
        ("cifar10", "widenet_s", 50_000, 195),  # half of one of 8 epochs
        ("tiny_imagenet", "", 100_000, 781),  # 1 of 20 epochs
        ("text_tiny", "", 1000, 150),
        ("text_pretrain", "albert_s", 1000, 730),
        ("glue", "sst2", 67_349, 314),  # ALBERT's Table 14, and for the next four
        ("glue", "mnli", 392_702, 1000),
        ("glue", "stsb", 5_749, 214),
        ("squad", "v1", 87_599, 365),
        ("squad", "v2", 130_319, 814),
        ("glue", "own", 1000, 9),
    ],
)
def test_warmup_follows_the_length_of_the_run(
    name: str, variant: str, num_examples: int, steps: int
):
    config = get_config(name, variant)
    sizes = {"batch_size": config.batch_size, "num_examples": num_examples}
    total = to_steps(config.duration, field="config.duration", **sizes)

    def warmup(total_steps: int) -> int:
        return to_steps(
            config.optimizer.warmup,
            field="config.optimizer.warmup",
            total_steps=total_steps,
            **sizes,
        )

    assert warmup(total) == steps
    assert 1 <= warmup(60) <= 6


def fields(config: ConfigDict) -> set[str]:
    return {name for name, value in fields_of(config) if not isinstance(value, ConfigDict)}


def test_configs_have_the_same_fields():
    """An override that works for one must work for all; only dense models have no moe section."""
    reference = fields(get_config("imagenet", "widenet_b"))
    for name in CONFIGS:
        assert fields(get_config(name, "")) == reference, name


def test_every_field_is_read():
    """Each field's name stands in the package's code outside the tables that define it."""
    files = [path for path in (ROOT / "widenet_jax").rglob("*.py") if path.stem != "spec"]
    words = set(re.findall(r"\w+", " ".join(path.read_text() for path in files)))
    every = [
        fields(get_config(name, variant)) for name, variant, *_ in (case.values for case in CASES)
    ]
    assert {field.rsplit(".", 1)[-1] for field in set().union(*every)} <= words


def test_the_recipe_is_that_of_table_6():
    """WideNet's Table 6: ImageNet-1K, CIFAR-10."""
    table = {
        "duration": ("300 epochs", "100 epochs"),
        "optimizer.warmup": ("30 epochs", "0 steps"),
        "batch_size": (4096, 512),
        "optimizer.learning_rate": (0.01, 0.03),
        "optimizer.weight_decay": (0.1, 0.0),
        "model.dropout": (0.1, 0.1),
        "task.label_smoothing": (0.1, 0.0),
        "augment.mixup_alpha": (0.5, 0.5),
    }
    recipes = [dict(fields_of(get_config(name, "widenet_b"))) for name in ("imagenet", "cifar10")]
    assert {field: tuple(of[field] for of in recipes) for field in table} == table
    assert recipes[0]["optimizer.name"] == "lamb"


def test_authors_code_differs_where_the_released_code_does():
    """Second GELU, zero CLS token, capacity minus one, linear decay to 1e-5, squashing."""
    paper, code = (
        dict(fields_of(get_config("imagenet", f"widenet_b,preset={preset}")))
        for preset in ("paper", "authors_code")
    )
    changed = {key: code[key] for key in paper if paper[key] != code[key]}
    assert {key: value for key, value in changed.items() if not isinstance(value, ConfigDict)} == {
        "model.ffn_output_activation": True,
        "model.cls_token": "zero",
        "model.moe.capacity_rule": "authors_code",
        "model.moe.capacity_factor_eval": 1.2,  # that of training
        "augment.randaugment_before_crop": True,
        "augment.eval_crop": "squash",
        "optimizer.schedule": "linear",
        "optimizer.end_learning_rate": 1e-5,
    }
    moe = get_config("imagenet", "widenet_b,preset=authors_code,capacity_factor=2").model.moe
    assert (moe.capacity_factor, moe.capacity_factor_eval) == (2, 2)
