"""Language models whose feed-forwards are compared at equal parameters (sigma-MoE's paper).

Csordás, Irie and Schmidhuber 2023, arXiv:2310.10837: a Transformer-XL with a dense feed-forward, a
mixture of experts, the K largest hidden units or product keys in every block.

  python -m widenet_jax.main --config=configs/language_model.py:wt_s,ffn=moe \
      --workdir=gs://BUCKET/run --config.data.path=gs://BUCKET/wikitext103 --distributed
  python -m widenet_jax.main --config=configs/language_model.py:tiny --workdir=runs/tiny

| recipe          | paper                                   | ours                              |
|-----------------|-----------------------------------------|-----------------------------------|
| data            | wt: WikiText-103, e8: enwik8 (bytes),   | config.data.path, a set of        |
|                 | C4, peS2o; 8,000 pieces except e8      | scripts/prepare_data.py stream    |
| steps           | 100,000; Adam, 2.5e-4, cosine to 0      | the same, in bfloat16             |
| tokens, batch   | 256 (small), 512 (e8, big); 64, e8 32   | the same                          |
| memory          | as many tokens; 4 times in evaluation   | the same                          |
| warm-up         | big: 4,000 steps, then 100,000 of the   | the same; the cosine ends with    |
|                 | cosine: the run ends at 0.4% of a rate  | the run, at 0                     |
| clipping        | 0.25; small but e8, dense, top-K: 0.1   | the same as run                   |
| dropout         | 0.1, big 0.2                            | the same                          |
| expert dropout  | wt_s_star, e8 0.05; big 0.2 in Table 9, | the same as run                   |
|                 | 0.1 as run                              |                                   |
| entropy loss    | 0.001; e8 0.0001; small C4, peS2o as    | the same; Table 4's wt_s and      |
|                 | run 0, with S-BASE 0.0001; Table 4's    | S-BASE's with entropy=0.0001      |
|                 | wt_s 0.0001                             |                                   |
| entropy loss of | as run over the K chosen experts        | over all; as run with preset=     |
| renormalised    |                                         | softmax_renormalized_released     |
| Switch loss     | as run E^2 times weaker than eq. 17     | eq. 17                            |
| attention       | a learned factor of the scores          | 1 / sqrt(H): 2 scalars fewer a    |
|                 |                                         | block                             |
| S-BASE          | balanced within a sequence, with a slip | within the batch; as released     |
|                 | that leaves the loads unbalanced        | with preset=s_base_released       |
| product keys    | as run every pair, scores of the heads  | the best pairs of each head; as   |
|                 | added before ReLU or softmax            | run with combine_heads=before     |

| size      | D, L, heads    | dense F | E x G, K     | parameters dense / MoE    |
|-----------|----------------|---------|--------------|---------------------------|
| wt_s      | 412, 16, 10x41 | 2053    | 16 x 128, 4  | 47,260,104 / 47,260,216   |
| wt_s_star | the same       | 16480   | 128 x 128, 4 | 237.7M / 237.0M           |
| wt_b      | 1024, 18, 16x64| 4110    | 32 x 128, 4  | 262.5M / 262.5M           |
| e8        | 512, 12, 8x64  | 2053    | 16 x 128, 4  | 41.2M / 41.2M             |

Plans for TPUs: docs/log/plans_language_models.md.

Test perplexity, e8 in bits a byte. Paper: one run each, no seeds. Ours: not run.

| row                       | preset                                   | wt_s  | wt_b  | e8   |
|---------------------------|------------------------------------------|-------|-------|------|
| dense                     | dense                                    | 11.81 | 9.46  | 1.08 |
| top-K, K = 128            | top_k                                    | 11.74 | 9.26  | 1.07 |
| sigma-MoE (Table 4)       | sigma_moe                                | 11.59 | 9.44  | 1.08 |
|   standard dropout        | standard_dropout                         | 12.01 | 9.53  | 1.08 |
|   softmax, renormalised   | softmax_renormalized                     | 11.89 | 9.58  | 1.09 |
|     as released           | softmax_renormalized_released            | 11.89 | 9.58  | 1.09 |
|   softmax                 | softmax                                  | 12.05 | 9.62  | 1.09 |
|   standard initialisation | standard_init                            | 11.80 | 9.67  | 1.08 |
|   no entropy, no delta    | unregularized                            | 11.83 | 9.51  | 1.08 |
|   K = 8, G = 64           | sigma_moe,selected=8,mlp_dim=64          | 11.63 | 9.58  | 1.08 |
|   K = 1, G = 512          | sigma_moe,selected=1,mlp_dim=512         | 11.90 | 9.58  | 1.09 |
| Switch, K = 1, G = 512    | switch                                   | 12.27 | 9.68  | 1.08 |
|   without dropout         | switch_no_dropout                        | 11.88 | 9.77  | 1.10 |
| S-BASE, K = 4, G = 128    | s_base_released                          | 13.01 | 10.50 | 1.17 |
| product keys, softmax     | product_key_softmax,combine_heads=before | 13.96 | 11.10 | 1.16 |
| product keys, ReLU        | product_key,combine_heads=before         | 12.77 | 9.98  | 1.11 |
|   values of fan n^2       | product_key_init,combine_heads=before    | 12.75 | 9.96  | 1.11 |

`byte_s` has 0.7M parameters and reads bytes, for comparisons on a CPU; `loop_s` has 9 thin blocks,
for comparisons of loops; `tiny` is for a first run on the embedded novel. All three train without
dropout: standard_dropout and switch_no_dropout need dropout=0.1. Dense widths of `byte_s` and
`tiny` and all numbers of product keys are solved for the parameters of the experts;
parameter_matched=true does so for the other dense models, whose printed widths are within 0.5% of
it. variants.py has every option.

Looped models, see docs/howto/loops.md: moeut_44m to moeut_1b (MoEUT), and tying with the options
loop and tie ("Tying the Loop"), at their published sizes and rates. Ours: not run. As released, but
for (docs/log/loops_elsewhere.md has all):

| recipe | what differs from the released code                             | theirs / ours     |
|--------|------------------------------------------------------------------|-------------------|
| moeut  | entropy losses: each loop's own p, the mean over loops           | 1 at equal p      |
| moeut  | initial embedding                                                | 1.8 to 3.2        |
| tying  | rates of attention in a group of g loops with tie=experttie      | 1 / sqrt(g)       |
| tying  | rates of tied routers, norms of queries and keys (alltie, ...)   | sqrt(g)           |
| tying  | initial attention, wi and wg, wo, router, embedding              | 0.41, 0.47, 1.9,  |
|        |                                                                  | 0.56, 0.10        |
| tying  | losses over 64 sequences, as accumulation_steps=4 does; ours 256 | none              |
| tying  | Muon in bfloat16, without bias correction (docs/why/numerics.md) | 1 after 50 steps  |
"""

from ml_collections import ConfigDict

from configs import defaults
from configs.sizes import MOEUT, hidden_dropout
from configs.variants import LANGUAGE, parse

# config.optimizer.grad_clip_norm is 0.25 except for the feed-forwards in `clip`.
SMALL = {"batch_size": 64, "max_length": 256, "clip": {"mlp": 0.1, "top_k_mlp": 0.1}}
BIG = {"batch_size": 64, "max_length": 512, "warmup": "4000 steps"}
RECIPES = {
    "wt_s": SMALL | {"path": "data/wikitext103"},
    "wt_s_star": SMALL | {"path": "data/wikitext103"},
    "wt_b": BIG | {"path": "data/wikitext103"},
    "e8": {"path": "data/enwik8", "batch_size": 32, "max_length": 512},
    "c4_s": SMALL | {"path": "data/c4"},
    "c4_b": BIG | {"path": "data/c4"},
    "pes2o_s": SMALL | {"path": "data/pes2o"},
    "pes2o_b": BIG | {"path": "data/pes2o"},
}
# Looped models: MoEUT (arXiv:2405.16039), and "Tying the Loop" (arXiv:2606.16825). Cosine to 10%.
MOEUT_RECIPE = {"batch_size": 64, "max_length": 1024, "path": "data/c4"}
MOEUT_OPTIMIZER = {
    **{"learning_rate": 2.5e-4, "end_learning_rate": 2.5e-5},
    **{"weight_decay": 0.01, "exclude_norm_and_bias": False},
}
TYING_RECIPE = {
    "batch_size": 256,
    "max_length": 512,
    "path": "data/dclm",
    "duration": "10000 steps",
}
TYING_OPTIMIZER = {
    **{"name": "muon", "momentum": 0.95, "learning_rate": 0.02, "end_learning_rate": 0.002},
    **{"adam_rate": 0.1, "b2": 0.95, "warmup": "50 steps", "grad_clip_norm": 1.0},
    **{"weight_decay": 0.1, "decay_exclude": "embedding|.*router/kernel", "tied_rate": "sqrt"},
}
for _name in MOEUT:
    _first = {"warmup": "0 steps", "grad_clip_norm": 0.1}
    _other = {"warmup": "4000 steps", "grad_clip_norm": 0.25}
    _own = _first if _name == "moeut_44m" else _other
    RECIPES[_name] = MOEUT_RECIPE | {"optimizer": MOEUT_OPTIMIZER | _own}
RECIPES["tying"] = TYING_RECIPE | {"optimizer": TYING_OPTIMIZER}


def get_config(variant: str = "wt_s") -> ConfigDict:
    _, size, options, model = parse(variant, LANGUAGE)
    config = defaults.get_config(model, task="language_modeling")
    if config.model.moe:  # its rates follow the model's, too
        for name in ("output_dropout", *(["dropout"] if hidden_dropout(options) else [])):
            config.model.moe[name] = config.model.get_oneway_ref("dropout")
    # Adam: AdamW without decay.
    config.optimizer.update(schedule="cosine", eps=1e-8, grad_clip_norm=0.25)
    if size in ("byte_s", "loop_s", "tiny"):
        small = size == "tiny"
        config.update(
            batch_size=16,
            duration="600 steps" if small else "2000 steps",
            log_every_steps=20,
            data={"path": "data/enwik_s", "max_length": 128},
            optimizer={"learning_rate": 2e-3, "warmup": "50 steps"},
            evaluation={"batch_size": 16, "every": "200 steps" if small else "500 steps"},
            checkpoint={"every": "200 steps" if small else "250 steps"},
        )
        if size == "loop_s":
            config.data.update(path="data/bytes", max_length=128)
            config.update(batch_size=8, evaluation={"batch_size": 8})
            config.update(duration="1000 steps", evaluation={"every": "1000 steps"})
            # By width, each the best of a pilot (docs/log/loops_pilot.md).
            rates = {108: 2e-3, 180: 1e-3}
            config.optimizer.learning_rate = rates.get(config.model.embed_dim, 4e-3)
        if small:
            config.data.update(path="", max_length=64)  # an embedded novel
        return config
    recipe = RECIPES[size]
    config.update(
        batch_size=recipe["batch_size"],
        duration=recipe.get("duration", "100000 steps"),
        log_every_steps=50,
        data={"path": recipe["path"], "max_length": recipe["max_length"]},
        optimizer={
            "learning_rate": 2.5e-4,
            "warmup": recipe.get("warmup", "0 steps"),
            "grad_clip_norm": recipe.get("clip", {}).get(model["ffn"], 0.25),
            **recipe.get("optimizer", {}),
        },
        evaluation={"batch_size": recipe["batch_size"], "every": "5000 steps"},
        checkpoint={"every": "1000 steps"},
        # Unsharded, Adam's update of WT-B takes about 24 ms of a step on v3-8 (by the compiler's
        # estimate, November 2026). Dense widths such as 4110 are no multiple of 8; for kernels
        # sharded over D the compiler sends activations.
        sharding={"fsdp": -1 if model["ffn"] == "moe" else 1},
    )
    return config
