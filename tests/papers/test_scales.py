"""The paper's models at other scales, and how their runs depend on each other."""

from pathlib import Path

import pytest

from widenet_jax.config.files import load_config
from widenet_jax.ops.sweep.directory import Directory
from widenet_jax.papers.experiments import EXPERIMENTS, chosen
from widenet_jax.papers.scales import (
    SCALES,
    Run,
    language_variant,
    run_of,
    runnable,
    runs_of,
    trial_of,
    variant_at,
)

TABLE_1, TABLE_4, TABLE_5, FIGURE_3 = (
    EXPERIMENTS[name] for name in ("table1", "table4", "table5", "fig3")
)


@pytest.mark.parametrize(
    ("paper", "small"),
    [
        ("widenet_b,share_norms=true", "widenet_s,share_norms=true"),
        # L is 8 blocks deep; half of them are the 4 of any model of size S.
        ("widenet_l", "widenet_s,depth=8"),
        ("widenet_l,depth=12", "widenet_s"),
        # Twice as wide as 4096, and as 256.
        ("vit_l,share=true,mlp_dim=8192", "vit_s,depth=8,share=true,mlp_dim=512"),
        ("vit_moe_b,experts=16", "vit_moe_s,experts=16"),
        # 12 groups of 12 blocks are 4 of 4; 2 are rounded down, but not to 0.
        ("widenet_b,routing_groups=12", "widenet_s"),
        ("widenet_b,routing_groups=2", "widenet_s,routing_groups=1"),
    ],
)
def test_models_keep_their_shape(paper: str, small: str):
    assert variant_at(SCALES["small"], paper) == small


@pytest.mark.parametrize(
    ("label", "wt_b", "byte_s"),
    [
        ("K = 8, G = 64", "preset=sigma_moe,mlp_dim=64,selected=8", "mlp_dim=16,selected=8"),
        ("K = 1, G = 512", "preset=sigma_moe,mlp_dim=512,selected=1", "mlp_dim=128,selected=1"),
        ("Switch, K = 1, G = 512", "preset=switch", "preset=switch"),
    ],
)
def test_feed_forwards_keep_their_shape(label: str, wt_b: str, byte_s: str):
    rows = EXPERIMENTS["sigma_table4_wt_b"].rows
    (row,) = [row for row in rows if row.label.strip() == label]
    assert language_variant("wt_b", row) == f"wt_b,{wt_b}"
    found = language_variant("byte_s", row)
    assert found.startswith(f"byte_s,{row.variant}") and found.endswith(byte_s)


def test_the_entropy_loss_of_table_4():
    """A tenth of Table 3's for the small model, where a row has it and at the paper's scale."""

    def weights(name: str, scale: str = "paper") -> dict[str, float]:
        (one,) = runnable(SCALES[scale], [EXPERIMENTS[name]])
        runs = {row.label.strip(): run_of(SCALES[scale], one, row) for row in one.rows}
        configs = {
            row: load_config(f"configs/language_model.py:{run.variant}")
            for row, run in runs.items()
        }
        losses = {row: c.model.moe.losses for row, c in configs.items() if c.model.moe}
        return {row: of.entropy + of.entropy_of_chosen for row, of in losses.items()}

    table_4 = weights("sigma_table4_wt_s")
    zero = [row for row, weight in table_4.items() if not weight]
    assert zero == [row for row in table_4 if "Switch" in row or row.startswith("no entropy")]
    assert {table_4[row] for row in table_4 if row not in zero} == {1e-4} and len(zero) == 6
    assert set(weights("sigma_parts_wt_s").values()) == {1e-4, 0.0}
    assert weights("sigma_zoo_wt_s")["S-BASE, K = 4, balanced"] == 1e-4
    assert weights("sigma_table3_wt_s") == {"sigma-MoE": 1e-3}
    assert weights("sigma_table4_wt_b")["sigma-MoE"] == 1e-3
    assert weights("sigma_table4_wt_s", "small")["sigma-MoE"] == 1e-3


def test_models_of_bytes_are_compared_by_bits_and_equal_models_are_one_run():
    """At the paper's scale the column is the paper's; at others the same run stands for two."""
    named = chosen(["sigma_table4"])
    metrics = {one.language: one.metric.name for one in runnable(SCALES["paper"], named)}
    assert set(metrics) == {"wt_s", "wt_s_star", "wt_b", "e8"}
    assert metrics["wt_s"] == "perplexity"
    small = runnable(SCALES["small"], named)
    assert [one.language for one in small] == ["wt_s", "e8"]
    assert {one.metric.name for one in small} == {"bits_per_byte"}
    assert [one.paper_label for one in small] == ["perplexity", "bits a byte"]
    labels = {row.label for row in small[1].rows}
    assert {"Switch, K = 1, G = 128 (paper: G = 512)", "  K = 8", "dense"} <= labels
    assert small[1].title.endswith("(with Table 10); byte_s in place of enwik8")
    first = runs_of(SCALES["small"], small[:1])
    assert first == runs_of(SCALES["small"], small) and len(first) == 19
    assert "standard dropout" not in [row.label.strip() for row in small[0].rows]
    # K = 1 and 2 of 4 are both 1 of 2 there; Fig. 3 shares its five runs with Table 4.
    smoke = runnable(SCALES["smoke"], chosen(["sigma_table4", "sigma_fig3"]))
    assert len(runs_of(SCALES["smoke"], smoke)) == 18
    assert SCALES["paper"].topology_of("configs/language_model.py:e8", finetuned=False) == "v3-8"
    assert SCALES["paper"].topology_of("configs/imagenet.py:vit_b", finetuned=False) == "v3-256"


def test_runs_are_shared_and_backbones_come_first():
    scale = SCALES["paper"]
    alone = [len(runs_of(scale, [one])) for one in (TABLE_1, TABLE_4, FIGURE_3)]
    assert alone == [7, 5, 4]
    # ViT-L and WideNet-L are in Table 1 already, and so is WideNet-B.
    assert len(runs_of(scale, [TABLE_1, TABLE_4, FIGURE_3])) == 7 + 3 + 3
    runs = runs_of(scale, [TABLE_5])
    assert len(runs) == 12 and all(run.backbone is None for run in runs[:6])
    assert [run.backbone for run in runs[6:]] == runs[:6]
    # Pretraining is Table 1's; at small scale Table 5 starts from Tiny-ImageNet instead.
    assert runs_of(scale, [TABLE_1, TABLE_5]) == [
        *runs_of(scale, [TABLE_1]),
        *(run for run in runs if run.backbone),
    ]
    assert len(runs_of(SCALES["small"], [TABLE_1, TABLE_5])) == 7 + 6 + 6


def test_a_trial_names_its_images_its_backbone_and_the_users_fields(tmp_path: Path):
    scale, directory = SCALES["small"], Directory(tmp_path)
    flags = ["--config.batch_size=32"]
    backbone = Run(scale.backbone, "vit_s")
    trial = trial_of(Run(scale.finetune, "vit_s", backbone), 2, directory, "gs://sets", flags)
    first = trial_of(backbone, 2, directory, "gs://sets", flags)
    assert trial.arguments("w") == [
        "--config=configs/cifar10.py:vit_s", "--workdir=w", "--config.data.path=gs://sets/cifar10",
        "--config.batch_size=32", f"--config.init_from={tmp_path}/{first.name}", "--config.seed=2",
    ]  # fmt: skip
    assert "--config.data.path=gs://sets/tiny_imagenet" in first.arguments("w")
    moved = Directory(tmp_path / "elsewhere")
    again = trial_of(Run(scale.finetune, "vit_s", backbone), 2, moved, "gs://sets", flags)
    assert again.name == trial.name and again.settings != trial.settings
    scratch = trial_of(Run(scale.pretrain, "vit_s"), 2, directory, "gs://sets", flags)
    assert len({trial.name, first.name, scratch.name}) == 3
    digits = trial_of(Run(SCALES["smoke"].pretrain, "vit_tiny"), 0, directory, "nowhere")
    assert not any("nowhere" in argument for argument in digits.arguments("w"))
