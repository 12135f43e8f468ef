"""The option parser of all models: options, presets and the answers to mistakes."""

import json
from pathlib import Path

import pytest

from configs import glue, squad
from configs.sizes import LANGUAGE_SIZES, MOEUT
from configs.variants import IMAGES, LANGUAGE, OF_KEYS, TEXTS, model_section, parse
from widenet_jax.errors import BadInputError
from widenet_jax.inference.pretrained_config import set_fields
from widenet_jax.nn.stack_settings import parse_model


def test_names_and_options():
    assert parse("widenet_b,moe=false", IMAGES)[:3] == ("widenet", "b", {"moe": False})
    assert parse("albert", TEXTS)[:3] == ("albert", "", {})
    found = parse("widenet_16_s,capacity_factor=2,norm_position=pre", TEXTS)
    assert found[:3] == ("widenet_16", "s", {"capacity_factor": 2.0, "norm_position": "pre"})
    moe, model = found.section["moe"], found.section
    assert (moe["num_experts"], moe["capacity_factor"]) == (16, 2.0)
    assert (model["norm_position"], model["embed_dim"]) == ("pre", 128)
    options = parse("wt_s,preset=switch,selected=2", LANGUAGE).options
    assert options == {"ffn": "moe", "router": "switch", "preset": "switch", "selected": 2}


def test_what_loops_have_of_their_own():
    def loop(text: str) -> dict:
        return model_section(f"loop_s,loop=1x9,ffn=moe,{text}")["loop"]

    found = loop("tie=attntie,norms=index")
    ties = {"attention": "loops", "experts": "loops", "router": "none", "norms": "loops"}
    assert (found["tie"], found["condition"]) == (ties, "index")
    assert loop("norms=tied")["tie"]["norms"] == "loops"
    assert loop("norms=own")["tie"]["norms"] == "none"
    assert [loop(f"routing={name}")["routing"] for name in ("own", "first")] == ["own", "first"]


NO_EFFECT = [
    (LANGUAGE, "loop_s,loop=3x3,routing=first", "routing has no effect on loop_s with ffn=dense"),
    (IMAGES, "vit_b,experts=8", "experts has no effect on vit_b with ffn=dense; remove it"),
    (IMAGES, "vit_b,num_active=8", "with ffn=dense; remove it, or add ffn=top_k"),
    (IMAGES, "widenet_b,ffn=product_key,selected=2", "selected has no effect"),
    (IMAGES, "widenet_b,moe=false,examples_per_group=8", "examples_per_group has no effect"),
    (LANGUAGE, "wt_s,ffn=moe,num_active=8", "num_active has no effect on wt_s with ffn=moe"),
    (
        LANGUAGE,
        "wt_s,preset=switch,entropy=0.1",
        "entropy has no effect on wt_s with router=switch",
    ),
    (
        LANGUAGE,
        "wt_s,preset=switch,balance=0.1",
        "balance has no effect on wt_s with router=switch",
    ),
    (LANGUAGE, "wt_s,ffn=moe,entropy=0.1,balance=0.1", "entropy has no effect beside balance"),
    (LANGUAGE, "wt_s,ffn=moe,router=hierarchical,expert_dropout=0.1", "expert_dropout has no"),
    (LANGUAGE, "loop_s,ffn=moe,entropy=0.1", "entropy has no effect on loop_s with router=top_k"),
    (LANGUAGE, "tying,balance=0.1", "no effect on tying with router=softmax_renormalized"),
    (
        LANGUAGE,
        "c4_s,ffn=moe,entropy_of=chosen",
        "entropy_of has no effect on c4_s without entropy",
    ),
    (IMAGES, "widenet_tiny,tie=attntie,share_ffn=true", "share_ffn has no effect beside tie"),
    (IMAGES, "vit_tiny,tie=alltie", "tie has no effect on vit_tiny, which runs each block once"),
    (LANGUAGE, "tiny,loop=ABx1+2x1,tie=attntie", "tie has no effect on tiny, which runs each blo"),
    (LANGUAGE, "moeut_44m,depth=4", "depth has no effect on moeut_44m; give loop, such as loop="),
    (LANGUAGE, "byte_s,preset=switch_no_dropout", "hidden_dropout of preset=switch_no_dropout has"),
    (LANGUAGE, "wt_s,ffn=moe,hidden_dropout=true,dropout=0.0", "without dropout; give dropout=0.1"),
]
OTHERS = [
    (IMAGES, "resnet_b", "did you mean widenet_b? there are vit_tiny, vit_mini, vit_s"),
    (TEXTS, "roberta", "'roberta'; did you mean bert? there are albert, bert, widenet_4"),
    (LANGUAGE, "wt_x", "there are wt_s"),
    (IMAGES, "widenet_b,exprets=8", "no option 'exprets'; did you mean experts? there are"),
    (IMAGES, "widenet_b,experts=many", "needs a whole number"),
    (IMAGES, "widenet_b,experts=0", "option experts=0 must be 1 or more"),
    (LANGUAGE, "wt_s,ffn=product_key,query_dim=-2", "option query_dim=-2 must be 0 or more"),
    (IMAGES, "widenet_b,share_norms=1", "needs true or false"),
    (IMAGES, "widenet_b,preset=mine", "choose one of paper, authors_code"),
    (IMAGES, "widenet_b,router=sigmod", "choose one of top_k, softmax"),
    (IMAGES, "widenet_b,ffn=topk", "moe, top_k, product_key (ffn=top_k?)"),
    (IMAGES, "widenet_b,experts=4,experts=8", "give option experts once, not twice"),
    (IMAGES, "widenet_b,moe=false,ffn=top_k", "give option moe or ffn, not both"),
    (TEXTS, "albert,ffn=moe", "albert has no experts; widenet_4, for instance, has"),
    (LANGUAGE, "wt_s,preset=sigma_moe,ffn=dense", "preset=sigma_moe has ffn=moe; remove it"),
    (LANGUAGE, "wt_s,mlp_dim=8,parameter_matched=true", "is what parameter_matched=true solves"),
]


def test_mistakes():
    for kind, text, message in NO_EFFECT + OTHERS:
        with pytest.raises(BadInputError) as caught:
            parse(text, kind)
        assert message in str(caught.value)


# Two values of each option of language models, if not numbers.
VALUES = {
    **{"loop": ("1+2x3+1", "3x2"), "tie": ("attntie", "experttie"), "routing": ("own", "first")},
    **{"norms": ("index", "tied"), "ffn": ("top_k", "moe"), "router": ("softmax", "sigmoid")},
    **{"attention": ("relative", "full"), "preset": ("dense", "unregularized")},
    **{"entropy_of": ("chosen,entropy=0.1", "all,entropy=0.1"), "table_init": ("lample", "a")},
    **{"kernel_init": ("switch", "pre_norm"), "weights": ("softmax", "relu")},
    **{"hidden_dropout": ("true", "false"), "combine_heads": ("before", "after")},
}
NEEDED = {"num_active": "top_k", **dict.fromkeys(OF_KEYS, "product_key")}


@pytest.mark.parametrize("size", LANGUAGE_SIZES)
def test_every_option_changes_the_model_or_is_refused(size: str):
    for option in LANGUAGE.options.keys() - {"parameter_matched"}:
        start = f"{size},ffn={NEEDED.get(option, 'moe')}"
        start = size if option in ("ffn", "preset") else start
        start += ",dropout=0.5" if option == "hidden_dropout" else ""
        usual = ("0.3", "0.7") if LANGUAGE.options[option] is float else ("3", "7")
        values = VALUES.get(option, usual)
        try:
            first, second = (model_section(f"{start},{option}={value}") for value in values)
        except BadInputError as error:
            assert f"has no effect on {size}" in str(error), option
            continue
        assert first != second, option


def test_soft_experts_take_initial_values():
    model = model_section("tiny,ffn=soft_moe,kernel_init=switch") | {"allow_mixing": True}
    assert parse_model(model).feed_forwards["soft_moe"].kernel_init == "switch"


def test_a_size_s_own_router_may_be_written():
    for size, of in LANGUAGE_SIZES.items():
        own = model_section(f"{size},ffn=moe")
        written = model_section(f"{size},ffn=moe,router={of.get('router', 'sigmoid')}")
        assert written == own, size


def weights(variant: str) -> dict:
    """The weights of a model's losses, summed over its operations as runs sum them."""
    section = model_section(variant)
    losses = {k: w for k, w in section["moe"]["losses"].items() if w and k != "over"}
    return losses | {"attention": section["attention"].get("entropy", 0)}


def test_losses_that_papers_average_over_layers():
    """The code of arXiv:2606.16825 averages over its 32 layers: each has 0.01 / 32."""
    for loop, depth in {"32x1": 32, "2+1x4+1x4+2": 12, "ABCBAx2": 10}.items():
        found = weights(f"tying,loop={loop}")
        assert {k: depth * w for k, w in found.items()} == pytest.approx(
            {"first_choice": 0.01, "z": 1e-4, "attention": 0}
        )
    assert weights("tying")["first_choice"] == pytest.approx(0.01 / 32)


def test_losses_that_papers_average_over_loops():
    """MoEUT has one loss a layer, of p over all its loops: 16 / 2 loops, 36 / 4, 24 / 3, ..."""
    loops = {name: depth // group for name, (_, depth, *_, group) in MOEUT.items()}
    loops |= {"moeut_44m,loop=1+2x3+1": 8 / 4, "moeut_44m,loop=ABAx4": 12 / 2}
    for variant, number in loops.items():
        found = {k: number * w for k, w in weights(variant).items()}
        assert found == pytest.approx({"entropy": 0.01, "attention": 0.001}), variant
    assert weights("moeut_44m,entropy=0.5")["entropy"] == 0.5  # as written


def test_a_model_of_any_kind():
    names = [model_section(text)["name"] for text in ("vit_b", "albert", "wt_s")]
    assert names == ["vision_transformer", "text_encoder", "language_model"]
    with pytest.raises(BadInputError, match=r"'widnet_b'; did you mean widenet_b\? there are vit"):
        model_section("widnet_b")


def test_norms_beside_a_tie():
    assert tie_of("widenet_tiny,loop=3x3,tie=attntie")["norms"] == "none"
    assert tie_of("widenet_tiny,loop=3x3,tie=attntie,share_norms=true")["norms"] == "loops"
    assert tie_of("albert_tiny,tie=experttie,share_norms=false")["norms"] == "none"
    assert tie_of("tiny,loop=ABAx1,tie=attntie")["attention"] == "loops"


def tie_of(variant: str) -> dict:
    return model_section(variant)["loop"]["tie"]


def test_experts_that_choose_have_one_capacity(tmp_path: Path):
    """It is part of their function, in training, in evaluation and in finetuning."""
    name = "widenet_4_s,router=expert_choice"
    section = model_section(f"{name},capacity_factor=2")
    (tmp_path / "config.json").write_text(
        json.dumps({"model": section, "task": {"name": "masked_lm"}})
    )
    stored = glue.get_config("mnli")
    set_fields(stored, [f"--config.init_from={tmp_path}"])
    for found, factor in (
        (section, 2),
        (model_section("widenet_tiny,router=expert_choice"), 1),
        (model_section("loop_s,ffn=moe,router=expert_choice"), 1),
        (squad.get_config(f"v1,model={name}").model, 1),
        (squad.get_config(f"v1,model={name},capacity_factor=2").model, 2),
        (stored.model, 2),
    ):
        moe = found["moe"]
        assert (moe["capacity_factor"], moe["capacity_factor_eval"]) == (factor, factor)
        assert moe["capacity_rule"] == "paper"
