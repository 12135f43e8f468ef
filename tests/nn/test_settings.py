"""Settings: plain data that refuse what does not exist or does not fit, however they are made."""

import dataclasses
import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import ROOT

from configs.variants import model_section
from widenet_jax.errors import BadInputError
from widenet_jax.extensions import try_parts
from widenet_jax.nn.attention import ATTENTIONS
from widenet_jax.nn.block_settings import BlockSettings
from widenet_jax.nn.build import build_model, parameter_shapes
from widenet_jax.nn.feed_forwards import FEED_FORWARDS
from widenet_jax.nn.loop_settings import parse_loop
from widenet_jax.nn.moe.layer import MoeLayer
from widenet_jax.nn.moe.routers import ROUTERS
from widenet_jax.nn.settings import (
    FullSettings,
    MlpSettings,
    MoeSettings,
    ProductKeySettings,
    RelativeSettings,
    RouterSettings,
    SwitchHeadSettings,
    TopKMlpSettings,
)
from widenet_jax.nn.stack_settings import StackSettings, block_indices, check_model, parse_model
from widenet_jax.specs import MODELS, TASKS, ModelSpec, TaskSpec
from widenet_jax.typing import Routing

MOE = MoeSettings(4, 4, 2, 1.2, 2.0, 2)
TOP_K = TopKMlpSettings(8, activation="relu", num_active=3)
PRODUCT_KEY = ProductKeySettings(3, 1, 2)
EXPERTS = {"moe": MOE, "mlp": MlpSettings(4)}
LOOPED = {"core": ((1, 3),), "tie": {"norms": "loops"}}
STACK = StackSettings(
    loop=LOOPED, attention={"name": "full", "num_heads": 2}, feed_forwards=EXPERTS, ffn="moe"
)
IMAGES, LANGUAGE = (parse_model(model_section(name)) for name in ("widenet_tiny", "tiny"))
TEXT = parse_model(model_section("albert_tiny"))
ROUTER = "config.model.moe.router"


def router(name: str, **fields: object) -> dict:
    return {"router": {"name": name, **fields}}


# Settings, changes of them, and the line or a part of it.
REFUSED = [
    (MOE, router("top"), "name='top' is unknown; .*--config.model.moe.router.name=top_k"),
    (MOE, {"dispatch": "gathr"}, "--config.model.moe.dispatch=gather"),
    (MOE, {"priority": "token_orde"}, "--config.model.moe.priority=token_order"),
    (MOE, {"capacity_rule": "papr"}, "--config.model.moe.capacity_rule=paper"),
    (MOE, {"capacity_factor": 0.0}, "moe.capacity_factor=0.0 must be between 0.001 and 1000"),
    (MOE, {"capacity_factor_eval": 2e3}, "capacity_factor_eval=2000.0 must be between"),
    (MOE, router("expert_choice") | {"capacity_factor": 3.0}, "capacity_factor_eval=.*: with router"
     r"\.name=expert_choice the factor is part of the function; set it to capacity_factor=3\.0"),
    (MOE, {"activation": "rel"}, "--config.model.moe.activation=relu"),
    (MOE, {"kernel_init": "pre"}, "kernel_init='pre' is unknown; choose one of glorot_uniform"),
    (MOE, {"output_dropout": 1.0}, "output_dropout=1.0 must be between 0 and 0.99"),
    (MOE, {"num_selected_experts": 5}, "num_selected_experts=5 must be between 1 and 4"),
    (MOE, {"activation": "swiglu", "output_activation": True}, "has a gate, and outputs have none"),
    (MOE, router("top_k", noise=1.0), r"\.noise is unknown; .* may have noise_std; each router has "
     rf"its own fields: .*, {ROUTER} = \{{'name': 'top_k'\}}"),
    (MOE, router("top_k", noise_std=-1.0), "noise_std=-1.0 must be between 0 and 1000"),
    (MOE, router("hierarchical", groups=3), "groups=3 must divide the 4 experts"),
    (MOE, router("hierarchical", selected_groups=3), "selected_groups=3 must be between 1 and 2"),
    (MOE, router("sigmoid", expert_dropout=1.0), "expert_dropout=1.0 must be between 0 and 0.99"),
    (MOE, router("sinkhorn", bias_balancing=True), "this router balances each batch already; set "),
    (MOE, {"losses": {"load_balanse": 1.0}}, "losses.load_balanse is unknown; .* load_balance, sw"),
    (MOE, {"losses": {"z": 1.0, "over": "groups"}}, "over=.groups. is unknown; choose one of grou"),
    (MOE, {"losses": {"load": 0.1, "over": "batch"}}, "needs a router .*noisy_top_k or hierarchi"),
    (MOE, router("expert_choice") | {"capacity_rule": "unlimited"}, "every expert would take ever"),
    (MOE, router("expert_choice") | {"losses": {"load_balance": 0.1, "over": "group"}},
     "losses.load_balance=0.1: with router.name=expert_choice loads are equal without a loss"),
    (TOP_K, {"num_active": 9}, "top_k_mlp.num_active=9 must be between 1 and 8"),
    (TOP_K, {"activation": "gelu"}, "set config.model.top_k_mlp.activation=relu in place of gelu"),
    (PRODUCT_KEY, {"weights": "max"}, "product_key.weights='max' is unknown"),
    (PRODUCT_KEY, {"combine_heads": "no"}, "product_key.combine_heads='no' is unknown"),
    (PRODUCT_KEY, {"table_init": "no"}, "product_key.table_init='no' is unknown"),
    (PRODUCT_KEY, {"knn": 10}, "product_key.knn=10 must be between 1 and 9"),
    (PRODUCT_KEY, {"query_dim": 5}, "query_dim=5 must be even: half of it is each sub-key's"),
    (FullSettings(2), {"rope": 1.5}, "attention.rope=1.5 must be between 0 and 1"),
    (FullSettings(2), {"implementation": "flash"}, "choose one of auto, xla, pallas, cudnn"),
    (RelativeSettings(2), {"implementation": "cudnn"}, r"choose one of auto, xla, pallas \("),
    (SwitchHeadSettings(2), {"num_experts": 4, "num_selected_experts": 5}, "=5 must be between 1 "),
    (SwitchHeadSettings(2), {"num_experts": 0}, "attention.num_experts=0 must be"),
    (STACK, {"norm": "batch"}, "config.model.norm='batch' is unknown; choose one of layer, rms"),
    (STACK, {"dropout": 1.0}, "config.model.dropout=1.0 must be between 0 and 0.99"),
    (STACK, {"drop_path": -0.1}, "config.model.drop_path=-0.1 must be between 0 and 0.99"),
    (STACK, {"drop_path": 1.0}, "config.model.drop_path=1.0 must be between 0 and 0.99"),
    (STACK, {"drop_path": 0.1, "loop": {"core": ((1, 1),)}}, "=0.1 has no effect on a depth of 1"),
    (STACK, {"adapter": {"rank": -1}}, "config.model.adapter.rank=-1 must be between 0 and 4096"),
    (STACK, {"adapter": {"tie": "loops"}}, "model.adapter.tie='loops' is unknown; choose one of"),
    (STACK, {"adapter": {"size": 8}}, "config.model.adapter.size"),
    (STACK, {"adapter": {"rank": 8, "tie": "none"}, "loop": LOOPED | {"counts": {"eval": 3}}},
     "tie=none gives each step an adapter, which config.model.loop.counts.eval=3 has no place"),
    (STACK, {"adapter": {"rank": 8, "tie": "none"}, "loop": LOOPED | {"tie": {"router": "none"}}},
     "tie=none gives each step an adapter, which config.model.loop.tie.router=none has no place"),
    (STACK, {"ffn": "soft_moe"}, "ffn=soft_moe needs the section config.model.soft_moe"),
    (STACK, {"attention": {"name": "fulll"}}, "config.model.attention.name='fulll' is unknown"),
    (STACK, {"attention": {"name": "full"}}, "config.model.attention.num_heads is missing"),
    (STACK, {"attention": {"name": "full", "heads": 2}}, "attention.heads is unknown; .*num_heads"),
    (STACK, {"ffn": "mlp", "routing_groups": 3}, "routing_groups=3 has no effect on .*=mlp,"),
    (STACK, {"routing_groups": 2}, r"the depth 3: one of \[1, 3\], or 0 for none"),
    (STACK, {"ffn": "mlp", "norm_position": "peri"}, "=peri normalises what routers read"),
    (STACK, {"ffn_blocks": "every_9"}, "'every_9' is not known; .* with N from 1 to 3"),
    (STACK, {"ffn_blocks": (0, 3)}, "there is no block 3 in a depth of 3; blocks count from 0"),
    (STACK, {"loop": {"core": ((1, 3),), "routing": "first"}, "remat": "block"},
     "routing=first needs config.model.remat=none"),
    (IMAGES, {"pool": "token"}, "pool=token needs a CLS token: set config.model.cls_token=learned"),
    (IMAGES, {"pool": "max"}, "config.model.pool='max' is unknown; choose one of token, mean"),
    (IMAGES, {"embed_dim": 62}, "num_heads=4 must divide config.model.embed_dim=62, or conf"),
    (IMAGES, {"attention": {"name": "full", "num_heads": 64, "rope": 0.5}}, "of 1 dimensions of"),
    (IMAGES, {"attention": {"name": "relative", "num_heads": 4}}, "tokens of this model see all"),
    (LANGUAGE, {"embed_dim": 63}, "embed_dim=63 must be even: positions are pairs of a sine and a"),
    (LANGUAGE, {"ffn": "moe", "feed_forwards": EXPERTS | {"moe": dataclasses.replace(
        MOE, router={"name": "expert_choice"}, capacity_factor=2.0)}},
     "these experts see later tokens"),
    (TEXT, {"projection": False}, "needs embeddings as wide as the blocks, but .*embedding_dim=32"),
    (TEXT, {"head": "spans"}, "head='spans' is unknown; choose one of"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "changes", "line"), REFUSED)
def test_what_does_not_exist_or_fit_is_refused(settings: object, changes: dict, line: str):
    with pytest.raises(BadInputError, match=line):
        dataclasses.replace(settings, **changes)


@pytest.mark.parametrize(
    "changes", [{"attention": "full"}, {"attention": None}, {"loop": "1x3"}, {"moe": "x"}]
)
def test_what_is_no_section_is_refused(changes: dict):
    ((name, value),) = changes.items()
    with pytest.raises(BadInputError, match=f"config.model.{name}={value!r} must be a section"):
        parse_model(model_section("widenet_tiny") | changes)


def test_a_section_that_no_block_uses_may_contradict_itself():
    section = model_section("widenet_tiny")
    moe = section["moe"] | {"num_experts": 1}
    settings = parse_model(section | {"ffn": "mlp", "moe": moe})  # as a run may have been trained
    assert not settings.routes
    with pytest.raises(BadInputError, match="num_selected_experts=2 must be between 1 and 1"):
        dataclasses.replace(settings, ffn="moe")
    with pytest.raises(BadInputError, match=r"config.model.moe.experts is unknown"):
        parse_model(section | {"ffn": "mlp", "moe": moe | {"experts": 1}})


def test_settings_are_plain_data():
    for settings in (MOE, STACK, IMAGES, LANGUAGE, TEXT):
        assert pickle.loads(pickle.dumps(settings)) == settings
        assert hash(settings) == hash(dataclasses.replace(settings))
    assert dataclasses.replace(STACK, routing_groups=3).blocks_per_routing() == 1
    assert block_indices("last", 6) == (5,)


class Users(nn.Module):
    """A user's part, which says what it needs by class attributes and a method."""

    width: int = 4
    mixes = True

    def check(self, embed_dim: int) -> None:
        raise BadInputError(f"{self.width} does not fit {embed_dim}")


def test_what_a_user_s_part_says_of_itself_counts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(FEED_FORWARDS, "users", Users)
    monkeypatch.setitem(ATTENTIONS, "users", Users)
    section = model_section("tiny") | {"ffn": "users", "users": {"width": 3}}
    with pytest.raises(BadInputError, match="these experts see later tokens"):
        parse_model(section)
    settings = parse_model(section | {"allow_mixing": True})
    assert (settings.feed_forwards["users"].width, settings.routes) == (3, False)
    with pytest.raises(BadInputError, match="4 does not fit 64"):
        build_model(model_section("widenet_tiny") | {"attention": {"name": "users"}})


class Own(nn.Module):
    """A user's part with a field that must be given, and an activation of its own."""

    causal: bool
    activation: str = "mish"

    @nn.compact
    def __call__(self, x: jax.Array, **how: object) -> tuple:
        return x, {}


def test_fields_of_a_user_s_part_mean_what_its_class_says(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ATTENTIONS, "own", Own)
    monkeypatch.setitem(ATTENTIONS, "elsewhere", "not_installed:Attention")
    attention = {"name": "own", "activation": "mish"}
    settings = parse_model(model_section("tiny") | {"attention": attention})
    assert (settings.attention.causal, settings.attention.activation) == (True, "mish")


class Picky(BlockSettings):
    """A user's model, which refuses a width of its own."""

    embed_dim: int = 8

    def check(self) -> None:
        super().check()
        self.check_attention(self.embed_dim)
        if self.embed_dim == 6:
            raise BadInputError("6 is refused")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"embed_dim": 6}, "6 is refused"),
        ({"embed_dim": 7}, "num_heads=2 must divide config.model.embed_dim=7"),
        ({"attention": {"name": "users"}}, "4 does not fit 8"),
        ({"attention": {"name": "relative", "num_heads": 2}}, "tokens of this model see all"),
    ],
)
def test_a_user_s_model_is_asked(changes: dict, line: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ATTENTIONS, "users", Users)
    monkeypatch.setitem(MODELS, "picky", ModelSpec("picky", Picky))
    section = {"name": "picky", "mlp_dim": 4, "loop": {"core": ((1, 2),)}}
    section |= {"attention": {"name": "full", "num_heads": 2}}
    assert build_model(section).depth == 2
    with pytest.raises(BadInputError, match=line):
        build_model(section | changes)


class Inherited(MoeLayer):
    """A user's feed-forward, which inherits."""


class NoDistribution(nn.Module):
    num_experts: int
    num_selected_experts: int
    kernel_init: object

    @nn.compact
    def __call__(self, x, mask, *, key, train):
        logits = nn.Dense(self.num_experts)(x)
        gate, index = jax.lax.top_k(logits, self.num_selected_experts)
        return Routing(index, gate, logits, logits)


def test_the_router_of_an_inherited_layer_is_tried(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(FEED_FORWARDS, "inherited", Inherited)
    monkeypatch.setitem(ROUTERS, "none", NoDistribution)
    section = model_section("widenet_tiny")
    own = section["moe"] | {"router": {"name": "none"}, "losses": {"over": "group"}}
    model = build_model(section | {"ffn": "inherited", "inherited": own, "ffn_blocks": "all"})
    image = {"image": jax.ShapeDtypeStruct((1, 8, 8, 3), jnp.float32)}
    wrong = pytest.raises(BadInputError, match="router_probs of a token must be a distribution")
    with wrong, try_parts():
        parameter_shapes(model, image)


def test_a_user_s_task_may_decide_any_field(monkeypatch: pytest.MonkeyPatch):
    section = model_section("widenet_tiny") | {"cls_token": "none"}
    section.pop("patch_size")
    monkeypatch.setitem(TASKS, "users", TaskSpec("users", "a:Task", "a:transforms", "a:example"))
    check_model(section, "users", begun=lambda: False)
    with pytest.raises(BadInputError, match=r"config.model.patch_size is missing"):
        check_model(section, "classification", begun=lambda: False)


PROGRAM = """
import sys
from widenet_jax.main import main
mine, *fields = sys.argv[1:]
for field in fields:
    assert main(["main", "--config=configs/digits.py", "--workdir=none", f"--config.{field}"]) == 2
assert main(["main", f"--config={mine}", "--workdir=none"]) == 2
assert "jax" not in sys.modules
"""
MISTAKES = {
    "model.drop_path=1": "config.model.drop_path=1.0 must be between 0 and 0.99",
    "model.norm=batch": "config.model.norm='batch' is unknown; choose one of layer, rms",
    "model.moe.num_selected_experts=9": "num_selected_experts=9 must be between 1 and 4",
    "model.attention.num_heads=5": "num_heads=5 must divide config.model.embed_dim=64",
    "model.moe.router.name=x": "config.model.moe.router.name='x' is unknown",
    "model.loop.start=noise": "config.model.loop.start=noise needs config.model.loop.inject=add",
}


MINE = """
from configs import digits

def get_config():
    config = digits.get_config("widenet_tiny")
    config.model.attention = {"name": "full", "num_heads": "4"}
    return config
"""


def test_mistakes_are_told_without_jax(tmp_path: Path):
    (tmp_path / "mine.py").write_text(MINE)
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "mine.py"), *MISTAKES]
    errors = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True).stderr
    of_file = "config.model.attention.num_heads='4': this field needs a whole number, such as 12"
    for line, told in zip(errors.splitlines(), [*MISTAKES.values(), of_file], strict=True):
        assert line.startswith("error: ") and told in line


def test_the_example_of_the_layer_runs():
    """The lines of its docstring, with an x; each token has its K of E experts."""
    lines = re.search(r"layer = MoeLayer\(.*?aux\[\"loss\"\]", inspect.getdoc(MoeLayer), re.DOTALL)[
        0
    ]

    def run(x: jax.Array) -> tuple:
        names = {"MoeLayer": MoeLayer, "jax": jax, "x": x, "task_loss": jnp.sum}
        names["key"] = jax.random.key(1)
        exec(re.sub(r"\n {4}", "\n", lines), names)
        return names["output"], names["loss"]

    output, loss = jax.jit(run)(jnp.ones((4, 3, 8)))
    assert output.y.shape == (4, 3, 8) and np.isfinite(loss)
    assert output.aux["sums"]["load"].sum() == 4 * 3 * 2


def test_a_router_by_its_name_and_the_scope_of_losses_by_default():
    settings = MoeSettings(8, 4, 2, 1.0, 1.0, 1, router="switch", losses={"z": 0.1})
    assert settings.router == RouterSettings("switch")
    assert settings.losses == {"over": "group", "z": 0.1}


@pytest.mark.parametrize(
    "change",
    [
        {"dropout": 0.3},
        {"activation": "relu", "kernel_init": "switch"},
        {"dtype": "bfloat16", "ffn_bias": False},
        {"loop": parse_loop({"core": ((3, 1),)})},
    ],
)
@pytest.mark.parametrize("variant", ["widenet_tiny", "vit_tiny", "tiny", "tiny,ffn=moe"])
def test_parts_follow_a_changed_field_of_their_model(variant: str, change: dict):
    """As if the section had it from the beginning; what a part's own section sets stays."""
    section = model_section(variant)
    changed = parse_model(section | change)
    assert dataclasses.replace(parse_model(section), **change) == changed
    assert build_model(section).clone(**change).stack == changed
    again = pickle.loads(pickle.dumps(parse_model(section)))
    assert dataclasses.replace(again, **change) == changed


def test_settings_made_by_hand_stay_as_they_are():
    stack = dataclasses.replace(STACK, attention=FullSettings(2, dropout=0.2), dropout=0.3)
    assert (stack.attention.dropout, stack.feed_forwards["moe"]) == (0.2, MOE)
