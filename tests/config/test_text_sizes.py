"""Names of text models, and the exact number of parameters of every text model of the paper."""

import pytest

from configs import glue, squad
from configs.variants import finetuned_model, model_section
from widenet_jax.ops.plan import printed as paper
from widenet_jax.ops.plan.counts import count_text

# encoder; with embeddings and projection; with the pooler; with the heads of pretraining
COUNTS = {
    "albert": (7_087_872, 11_092_992, 11_683_584, 11_813_810),
    "bert": (85_054_464, 89_059_584, 89_650_176, 89_780_402),
    "widenet_4": (21_292_032, 25_297_152, 25_887_744, 26_017_970),
    "widenet_8": (40_184_832, 44_189_952, 44_780_544, 44_910_770),
    "widenet_16": (77_970_432, 81_975_552, 82_566_144, 82_696_370),
}


SLOW = [pytest.param(variant, marks=pytest.mark.slow) for variant in COUNTS if variant != "albert"]


@pytest.mark.parametrize("variant", ["albert", *SLOW])
def test_parameters(variant: str):
    names = ("encoder", "with_embeddings", "params", "with_heads")
    assert tuple(count_text(variant)[name] for name in names) == COUNTS[variant]


def test_every_printed_figure_is_ours_rounded_but_berts_which_is_truncated():
    assert {row.variant for row in paper.TEXT} == set(COUNTS)
    for row in paper.TEXT:
        millions = COUNTS[row.variant][2] / 1e6
        assert row.millions == (int(millions) if row.variant == "bert" else round(millions))


def test_the_paper_s_settings():
    """Post-norm, GELU tanh, an epsilon of 1e-12, dropout 0.1 but not within the feed-forward."""
    for variant in COUNTS:
        model = model_section(variant)
        assert model["embed_dim"] == 768
        attention = {"name": "full", "num_heads": 12, "head_dim": 0, "implementation": "auto"}
        assert model["attention"] == attention
        assert (model["embedding_dim"], model["num_positions"]) == (128, 512)
        assert (model["norm_position"], model["norm_epsilon"]) == ("post", 1e-12)
        assert (model["activation"], model["kernel_init"]) == ("gelu_tanh", "truncated_normal")
        assert (model["dropout"], model["ffn_dropout"]) == (0.1, False)
        loop = model["loop"]
        expected = {"albert": (((1, 12),), "loops"), "bert": (((12, 1),), "none")}
        found = loop["core"], loop["tie"]["norms"]
        assert found == expected.get(variant, (((1, 12),), "none"))
        if variant.startswith("widenet"):
            assert model["moe"]["num_experts"] == int(variant.partition("_")[2])
            assert (model["moe"]["num_selected_experts"], model["moe"]["mlp_dim"]) == (2, 3072)


def test_finetuning_of_experts_suits_eight_devices():
    """Batches of 32, 48 and 128 divide, since each sequence is routed alone."""
    configs = [glue.get_config(f"{name},model=widenet_4") for name in ("mnli", "sst2", "own")]
    configs += [squad.get_config(f"{version},model=widenet_4") for version in ("v1", "v2")]
    for config in configs:
        group = config.model.moe.examples_per_group
        assert group == 1
        assert config.batch_size % (8 * group) == config.evaluation.batch_size % (8 * group) == 0
    stored = finetuned_model(None, dropout=0.0, capacity_factor=1.2, balance=0.0)
    assert stored["moe"]["examples_per_group"] == 1  # of the stored model, pretrained with 16
    options = squad.get_config("v2,model=widenet_4,examples_per_group=2").model.moe
    assert options.examples_per_group == 2
