"""The option parser of all models: options, presets and the answers to mistakes."""

import pytest

from configs.variants import IMAGES, LANGUAGE, TEXTS, model_section, parse
from widenet_jax.errors import BadInputError


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
    (LANGUAGE, "wt_s,preset=switch,entropy=0.1", "entropy has no effect on router=switch"),
    (LANGUAGE, "wt_s,preset=switch,balance=0.1", "balance has no effect on router=switch"),
    (LANGUAGE, "wt_s,ffn=moe,entropy=0.1,balance=0.1", "entropy has no effect beside balance"),
    (LANGUAGE, "wt_s,ffn=moe,router=hierarchical,expert_dropout=0.1", "expert_dropout has no"),
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


def test_a_model_of_any_kind():
    names = [model_section(text)["name"] for text in ("vit_b", "albert", "wt_s")]
    assert names == ["vision_transformer", "text_encoder", "language_model"]
    with pytest.raises(BadInputError, match=r"'widnet_b'; did you mean widenet_b\? there are vit"):
        model_section("widnet_b")
