"""Every field of a config with its default, its meaning and its limits.

A config file takes the defaults and changes what its experiment needs:

  from configs import defaults
  from configs.variants import IMAGES, parse

  def get_config(variant="widenet_b"):
      config = defaults.get_config(parse(variant, IMAGES).section)
      config.update(batch_size=512, optimizer={"name": "sgd", "momentum": 0.9})
      return config

A field's row is (default, meaning), (default, meaning, least), (default, meaning, least, most), or
(default, meaning, choices) with a tuple of names; tables of the package may have further ones.
Without limits a whole number is at least 1 and another number at least 0; a field without a row may
be any finite number. The upper limits are far above any run that fits in memory: a larger value
would be built or allocated for minutes before it fails. `--print_config` and
docs/reference/config.md show the rows. A task's own fields stand in its spec, in
widenet_jax/{vision,text,language}/spec.py.

An unknown name is refused, so that a misspelt one cannot go unnoticed. To add a field in a config
file: `with config.unlocked(): ...`.

Durations are text, a number and a unit: "500 steps", "1e6 examples", "2.5 epochs". A warm-up may
also be a share of the run, "5%", which follows another config.duration.
"""

from collections.abc import Mapping

from ml_collections import ConfigDict

from widenet_jax.specs import task_spec

# The fields of every run, by section; "" are the fields outside sections.
RUN = {
    "": {
        "seed": (0, "for parameters, dropout, routing noise, data order", 0, 2**32 - 1),
        "init_from": ("", 'a run, an export, or public weights; "": from scratch'),
        "batch_size": (128, "examples a step, over all devices", 1, 2**20),
        "duration": ("10 epochs", "in epochs, steps or examples"),
        "log_every_steps": (10, "steps between logged metrics; each waits for the devices"),
        "on_nonfinite": ("stop", "stop; skip: discard updates that are not finite"),
        "max_skipped_updates": (10, "most in a whole run with on_nonfinite=skip", 0),
    },
    "data": {
        "num_workers": (0, "reading processes on each host; 0: threads", 0, 2**10),
        "prefetch": (4, "batches read ahead", 1, 2**10),
        "on_bad_example": ("error", "error; skip: replace unreadable examples"),
        "max_bad_fraction": (
            0.001,
            "largest share of unreadable examples; small sets: 10, at most 5%",
            0,
            1,
        ),
    },
    "optimizer": {
        "name": ("adamw", "adamw, lamb, sgd, muon"),
        "learning_rate": (1e-3, "after the warm-up"),
        "end_learning_rate": (0.0, "at the schedule's end; constant has none"),
        "schedule": ("cosine", "after the warm-up: cosine, linear, constant"),
        "warmup": ("0 steps", 'linear, from 0; also "5%" of the run, "1 epoch"'),
        "b1": (0.9, "decay of the gradients' mean; not sgd", 0, 0.999999),
        "b2": (0.999, "decay of the squared gradients' mean; not sgd", 0, 0.999999),
        "eps": (1e-6, "added to the root of b2's mean; not sgd"),
        "momentum": (0.9, "of sgd, and of muon (usually 0.95)", 0, 0.999999),
        "adam_rate": (0.1, "muon: share of learning_rate outside the blocks' matrices"),
        "tied_rate": (
            "none",
            "divides the update of a parameter used g times: none, sqrt (of g), visits (g)",
        ),
        "weight_decay": (0.0, "inside LAMB's trust ratio; an L2 loss in SGD; else decoupled"),
        "grad_clip_norm": (1.0, "largest global norm; 0: no clipping"),
        "exclude_norm_and_bias": (
            True,
            "norms and biases have no decay and, in LAMB, no trust ratio",
        ),
        "decay_exclude": ("", "regular expression: whole parameter paths without decay"),
        "accumulation_steps": (1, "micro-batches of a step"),
        "layer_decay": (1.0, "factor on the learning rate from a layer to the one below; 1: equal"),
        "ema_decay": (
            0.0,
            "decay of the parameter average, which is evaluated and exported; 0: none",
            0,
            0.999999,
        ),
        "sign_rate": (0.001, "step size of the biases of moe.router.bias_balancing"),
        "freeze": ("none", "none; backbone: only the head (a linear probe) and adapters learn"),
    },
    "evaluation": {
        "batch_size": (512, "examples, over all devices", 1, 2**20),
        "every": ("1 epoch", "interval; a run also ends with an evaluation"),
        "patience": (0, "stop after N evaluations without improvement; 0: never", 0),
    },
    "checkpoint": {
        "every": ("1 epoch", "interval; a run also saves at its end and when stopped"),
        "keep": (2, "number of newest checkpoints, besides the best"),
        "retry_minutes": (10.0, "minutes for which a run asks gs:// again; a start: 15 s", 0),
    },
    "sharding": {  # axes of the mesh; `data` has the other devices
        "fsdp": (
            1,
            "devices that shard the parameters; -1: all of a slice that expert leaves; -N: up to "
            "N, of several slices as -1",
            -(2**20),
        ),
        "expert": (1, "devices that shard the experts"),
    },
    "watchdog": {
        "dump_after_seconds": (900, "without progress: print all threads' stacks; 0: never", 0),
        "exit_after_seconds": (0, "without progress: end the process; 0: never", 0),
    },
    "task": {"name": ("", "set by the config file")},
    "tracking": {
        "tensorboard": (True, "write WORKDIR/tensorboard"),
        "wandb_project": ("", 'project in Weights & Biases; "": none'),
    },
}

# The fields of `config.model`, of every kind of model. sizes.py has the values of each model.
ACTIVATIONS = ("gelu_tanh", "gelu", "relu", "silu", "swiglu")
KERNEL_INITS = ("glorot_uniform", "truncated_normal", "pre_norm", "pre_norm_each_expert", "switch")
MODEL = {
    "name": ("", "set by the config file"),
    "embed_dim": (768, "D, width of a token", 1, 2**16),
    "mlp_dim": (3072, "F, hidden width of the dense feed-forward", 1, 2**18),
    "dropout": (0.1, "rate after attention and in the feed-forward", 0, 0.99),
    "drop_path": (0.0, "stochastic depth: the last block's rate, from 0 in the first", 0, 0.99),
    "dtype": ("bfloat16", "bfloat16, float32; parameters are float32", ("float32", "bfloat16")),
    "norm": ("layer", "layer, rms", ("layer", "rms")),
    "norm_position": (
        "pre",
        "pre: x + f(norm(x)); post: norm(x + f(x)); sandwich; peri",
        ("pre", "post", "sandwich", "peri"),
    ),
    "norm_epsilon": (1e-6, "added to the variance (rms: mean square)", 0, 1),
    "activation": ("gelu_tanh", "gelu_tanh, gelu (exact), relu, silu, swiglu (gated)", ACTIVATIONS),
    "kernel_init": (
        "glorot_uniform",
        "glorot_uniform, truncated_normal, pre_norm, pre_norm_each_expert, switch",
        KERNEL_INITS,
    ),
    "ffn_output_activation": (False, "a second activation, after the feed-forward"),
    "ffn_bias": (True, "in the dense feed-forward"),
    "unroll": (True, "false: compiles faster, runs slower"),
    "remat": ("none", "none; block: less memory, a third more work", ("none", "block")),
    "ffn": (
        "mlp",
        "mlp, moe, soft_moe, top_k_mlp, product_key; in the blocks of ffn_blocks",
        ("mlp", "moe", "soft_moe", "top_k_mlp", "product_key"),
    ),
    "ffn_blocks": ("all", "all, every_6 (blocks 5, 11, ...), last_2"),
    "routing_groups": (0, "groups of blocks that share a routing; 0: each block routes", 0),
    "moe": (None, "the section of ffn=moe"),
    "soft_moe": (None, "the section of ffn=soft_moe"),
}
IMAGE_MODEL = {
    "patch_size": (16, "pixels a side of a token"),
    "cls_token": (
        "learned",
        "learned, none, or zero: a constant token with a learned position",
        ("learned", "zero", "none"),
    ),
    "pool": ("token", "token: the CLS token; mean: of all tokens", ("token", "mean")),
    "pre_logits": (True, "a tanh layer before the classifier"),
}
TEXT_MODEL = {
    "embedding_dim": (128, "width of the embeddings", 1, 2**16),
    "projection": (True, "from embedding_dim to embed_dim"),
    "num_positions": (512, "the longest sequence", 1, 2**20),
    "num_token_types": (2, "segments, or texts, in a sequence", 2, 2**10),
    "ffn_dropout": (False, "dropout also within the feed-forward"),
}
LANGUAGE_MODEL = {
    "allow_mixing": (False, "allow expert_choice and soft_moe, which see later tokens"),
    "ffn_dropout": (True, "dropout also within the feed-forward"),
    "tied_output": (False, "the output layer is the embedding, without bias"),
    "top_k_mlp": (None, "the section of ffn=top_k_mlp"),
    "product_key": (None, "the section of ffn=product_key"),
}
LOOP = {  # config.model.loop, see widenet_jax/nn/loop_settings.py
    "prelude": (0, "unshared blocks before the core", 0, 2**10),
    "core": (((12, 1),), '(layers, loops) of each group; ((1, 12),): a block 12 times; ("ABA", 1)'),
    "coda": (0, "unshared blocks after the core", 0, 2**10),
    "inject": (
        "none",
        "none, add, linear: how the state before the core enters each loop",
        ("none", "add", "linear"),
    ),
    "start": (
        "prelude",
        "the core's first state: prelude, zeros, noise",
        ("prelude", "zeros", "noise"),
    ),
    "condition": (
        "none",
        "none, index, index_state: what modulates the core's norms in each loop",
        ("none", "index", "index_state"),
    ),
    "routing": ("own", "own; first: every loop keeps the first loop's experts", ("own", "first")),
    "embed": (False, "add a learned vector at the start of each loop"),
    "state_norm": (False, "normalise the state after each loop"),
    "residual_scale": (
        "1",
        "of the core's branches: 1, 1/loops, 1/(loops*sqrt(layers))",
        ("1", "1/loops", "1/(loops*sqrt(layers))"),
    ),
}
TIES = ("none", "loops", "core")
TIE = {  # config.model.loop.tie: what shares weights in the core: none, loops of a layer, core
    "attention": ("loops", "none, loops, core", TIES),
    "experts": ("loops", "the whole feed-forward: none, loops, core", TIES),
    "router": ("experts", "experts (as tie.experts), none, loops, core", (*TIES, "experts")),
    "norms": ("none", "none, loops, core", TIES),
}
COUNTS = {  # config.model.loop.counts: of each group that loops
    "train": (
        "fixed",
        "fixed: as core says; poisson; grow: from 1, in equal stages",
        ("fixed", "poisson", "grow"),
    ),
    "mean": (0, "of poisson: m; 0: the core's", 0, 2**10),
    "sigma": (0.5, "of poisson: deviation of log m", 0, 4),
    "backprop_last": (8, "of poisson: number of last loops that get a gradient", 1, 2**10),
    "eval": (0, "loops in evaluation; 0: as trained", 0, 2**10),
}
EXIT = {  # config.model.loop.exit: predictions after each loop, of language models without a memory
    "loss": (
        "last",
        "last loop's; mean over loops; expected: by a learned exit gate",
        ("last", "mean", "expected"),
    ),
    "entropy": (0.1, "of expected: weight of the exit distribution's entropy", 0, 1e3),
    "rule": (
        "none",
        "in evaluation: none (last loop); gate; kl: predictions settled",
        ("none", "gate", "kl"),
    ),
    "threshold": (0.5, "of gate: a probability; of kl: nats", 0, 1e3),
}
ADAPTER = {  # config.model.adapter, see widenet_jax/nn/adapters.py
    "rank": (0, "of the blocks' low-rank adapters (LoRA); 0: none", 0, 2**12),
    "tie": ("weights", "one for each: weights, stored kernel; none, step", ("weights", "none")),
    "alpha": (8.0, "the adapters' factor is alpha / rank"),
}
ATTENTION = {  # config.model.attention; its settings say the fields of each
    "name": ("full", "full; relative: by distance, to a memory and earlier tokens; switch_head"),
    "num_heads": (12, "N", 1, 2**12),
    "head_dim": (0, "H, of each of the N heads; 0: D / N", 0, 2**16),
    "implementation": (
        "auto",
        "auto, xla, pallas (TPUs), cudnn (GPUs): equal up to rounding",
        ("auto", "xla", "pallas", "cudnn"),
    ),
    "rope": (0.0, "share of H with rotary positions (RoPE)", 0, 1),
    "qk_norm": (False, "RMS norm of each head's queries and keys"),
    "use_bias": (True, "of full attention's four projections"),
    "num_experts": (
        1,
        "A of switch_head, for values and for output; 1: plain, with a gate",
        1,
        2**10,
    ),
    "num_selected_experts": (2, "of A > 1, for each token and head"),
    "entropy": (0.001, "of switch_head: weight of its balance loss"),
}
EXPERTS = {  # config.model.moe
    "mlp_dim": (4096, "hidden width of an expert", 1, 2**18),
    "num_experts": (4, "E", 1, 2**12),
    "num_selected_experts": (2, "K, experts for each token"),
    "shared_experts": (0, "additional experts that see every token", 0, 2**12),
    "capacity_factor": (1.2, "slots for each (token, choice) pair", 1e-3, 1e3),
    "capacity_factor_eval": (2.0, "as capacity_factor, in evaluation", 1e-3, 1e3),
    "capacity_rule": (
        "paper",
        "paper, literal, authors_code, unlimited: no token is dropped",
        ("paper", "literal", "authors_code", "unlimited"),
    ),
    "examples_per_group": (16, "examples routed together, on any number of devices"),
    "priority": (
        "token_order",
        "token_order, first_choice_first, batch_prioritized",
        ("token_order", "first_choice_first", "batch_prioritized"),
    ),
    "dispatch": (
        "auto",
        "auto, einsum, gather, ragged, masked, hopper (H100, H200): same result, different cost",
        ("auto", "einsum", "gather", "ragged", "masked", "hopper"),
    ),
    "activation": ("gelu_tanh", "as model.activation", ACTIVATIONS),
    "use_bias": (True, "in the experts"),
    "output_dropout": (0.0, "after the weighted sum of the experts", 0, 0.99),
}
LANGUAGE_EXPERTS = {
    "dropout": (0.0, "after an expert's hidden layer", 0, 0.99),
    "kernel_init": ("pre_norm", "as model.kernel_init", KERNEL_INITS),
}
ROUTER = {  # config.model.moe.router; a router has the fields that its entry in ROUTERS lists
    "name": ("top_k", "a name in ROUTERS; its own fields stand beside it"),
    "noise_std": (1.0, "of the scores in training, in units of 1 / E", 0, 1e3),
    "expert_dropout": (0.0, "share of experts hidden from a token in training", 0, 0.99),
    "bias_balancing": (False, "balance loads by a bias that affects only the choice"),
    "groups": (2, "of hierarchical: groups of experts"),
    "selected_groups": (2, "of hierarchical: groups for each token"),
}
LOSSES = {  # config.model.moe.losses: a weight for each
    "load_balance": (0.0, "WideNet, eqs. 3-5"),
    "switch": (0.0, "Fedus et al. 2021"),
    "importance": (0.0, "variation of the experts' gates, Shazeer et al. 2017"),
    "load": (0.0, "variation of smooth token counts; routers with learned noise"),
    "entropy": (0.0, "negative entropy of the mean choice, Csordás et al. 2023"),
    "entropy_of_chosen": (0.0, "as entropy, over the chosen experts, best first"),
    "z": (0.0, "squared logsumexp of the scores, Zoph et al. 2022"),
    "over": ("batch", "statistics over: batch, group", ("group", "batch")),
}
TYING_LOSSES = {"first_choice": (0.0, "of variant tying: load_balance of first choices only")}
SOFT_MOE = {  # config.model.soft_moe
    "mlp_dim": (4096, "hidden width of an expert", 1, 2**18),
    "num_experts": (4, "E", 1, 2**12),
    "capacity_factor": (1.0, "slots of all experts, for each token", 1e-3, 1e3),
    "activation": ("gelu_tanh", "as model.activation", ACTIVATIONS),
    "use_bias": (True, "in the experts"),
}
TOP_K_MLP = {  # config.model.top_k_mlp
    "mlp_dim": (2053, "F", 1, 2**18),
    "num_active": (128, "number of largest hidden units that are kept"),
    "activation": ("relu", "as model.activation", ACTIVATIONS),
    "kernel_init": ("pre_norm", "as model.kernel_init", KERNEL_INITS),
}
PRODUCT_KEY = {  # config.model.product_key
    "num_keys": (62, "n of each half; the table has n^2 values", 1, 2**11),
    "num_heads": (4, "heads that read the same table", 1, 2**11),
    "knn": (32, "values that a head reads"),
    "weights": ("relu", "relu or softmax of the scores", ("relu", "softmax")),
    "combine_heads": ("after", "after; before: as the paper ran", ("after", "before")),
    "query_dim": (0, "width of a projected query; 0: the token itself", 0),
    "table_init": (
        "embed_fan",
        "embed_fan, values_fan, lample",
        ("embed_fan", "values_fan", "lample"),
    ),
}
MODELS = {
    "model": MODEL | IMAGE_MODEL | TEXT_MODEL | LANGUAGE_MODEL,
    "model.loop": LOOP,
    "model.loop.tie": TIE,
    "model.loop.counts": COUNTS,
    "model.loop.exit": EXIT,
    "model.adapter": ADAPTER,
    "model.attention": ATTENTION,
    "model.moe": EXPERTS | LANGUAGE_EXPERTS,
    "model.moe.router": ROUTER,
    "model.moe.losses": LOSSES | TYING_LOSSES,
    "model.soft_moe": SOFT_MOE,
    "model.top_k_mlp": TOP_K_MLP,
    "model.product_key": PRODUCT_KEY
    | {"kernel_init": ("pre_norm", "as model.kernel_init", KERNEL_INITS)},
}
OWN_BIAS = ("moe", "soft_moe", "product_key")  # that do not read `ffn_bias`
# A field, and others with their values; beside all of these the field has no effect.
WITHOUT_EFFECT = (
    ("max_skipped_updates", {"on_nonfinite": ("stop",)}),
    ("data.max_bad_fraction", {"data.on_bad_example": ("error",)}),
    ("optimizer.momentum", {"optimizer.name": ("adamw", "lamb")}),
    ("optimizer.b1", {"optimizer.name": ("sgd",)}),
    ("optimizer.b2", {"optimizer.name": ("sgd",)}),
    ("optimizer.eps", {"optimizer.name": ("sgd",)}),
    ("optimizer.adam_rate", {"optimizer.name": ("adamw", "lamb", "sgd")}),
    ("optimizer.end_learning_rate", {"optimizer.schedule": ("constant",)}),
    ("augment.crop_area_min", {"augment.crop": ("pad",)}),
    ("augment.pad_pixels", {"augment.crop": ("inception",)}),
    ("augment.eval_crop_fraction", {"augment.eval_crop": ("squash",)}),
    ("augment.randaugment_magnitude", {"augment.randaugment_layers": (0,)}),
    ("augment.randaugment_before_crop", {"augment.randaugment_layers": (0,)}),
    ("model.ffn_output_activation", {"model.ffn": ("product_key",), "model.ffn_blocks": ("all",)}),
    ("model.ffn_dropout", {"model.ffn": ("product_key",), "model.ffn_blocks": ("all",)}),
    ("model.ffn_dropout", {"model.ffn": ("mlp",), "model.dropout": (0.0,)}),
    ("model.ffn_bias", {"model.ffn": OWN_BIAS, "model.ffn_blocks": ("all",)}),
    ("model.ffn_blocks", {"model.ffn": ("mlp",)}),
    ("model.adapter.tie", {"model.adapter.rank": (0,)}),
    ("model.adapter.alpha", {"model.adapter.rank": (0,)}),
    ("model.attention.num_selected_experts", {"model.attention.num_experts": (1,)}),
    ("model.attention.entropy", {"model.attention.num_experts": (1,)}),
    ("model.moe.capacity_factor", {"model.moe.capacity_rule": ("unlimited",)}),
    ("model.moe.capacity_factor_eval", {"model.moe.capacity_rule": ("unlimited",)}),
    ("model.moe.priority", {"model.moe.capacity_rule": ("unlimited",)}),
    ("model.moe.priority", {"model.moe.router.name": ("expert_choice",)}),
    ("model.loop.exit.threshold", {"model.loop.exit.rule": ("none",)}),
    ("model.loop.exit.entropy", {"model.loop.exit.loss": ("last", "mean")}),
    ("model.loop.counts.mean", {"model.loop.counts.train": ("fixed", "grow")}),
    ("model.loop.counts.sigma", {"model.loop.counts.train": ("fixed", "grow")}),
    ("model.loop.counts.backprop_last", {"model.loop.counts.train": ("fixed", "grow")}),
)


def get_config(model: Mapping, task: str = "classification") -> ConfigDict:
    """Returns the default config around the `config.model` section `model`.

    Args:
      model: a section of sizes.py, as variants.py parses it.
      task: a name in `widenet_jax.specs.TASKS`; its spec has the fields of its own sections.
    """
    config = ConfigDict(values(RUN[""]) | {"model": dict(model)})
    follow_model(config.model)
    for sections in (task_spec(task).sections, RUN):
        config.update({name: values(rows) for name, rows in sections.items() if name})
    config.task.name = task
    return config.lock()


def values(rows: Mapping[str, tuple]) -> dict:
    """Returns the defaults of some fields by name."""
    return {name: row[0] for name, row in rows.items()}


def follow_model(model: ConfigDict) -> None:
    """Makes fields of the feed-forward's section follow the model's of that name, if equal.

    A flag for the model's field then sets both, and one for the section's field that one alone.
    """
    section = model.get(model.get("ffn", "")) or {}
    for name in ("activation", "kernel_init"):
        if name in section and section[name] == model[name]:
            section[name] = model.get_oneway_ref(name)


def mixup_group_size(model: ConfigDict) -> int:
    """Returns the token group's size, so that mixup's partners stay in one group.

    Models without experts, or with groups of one image, mix within 16 neighbours.
    """
    images = model.moe.examples_per_group if model.moe else 1
    return images if images > 1 else 16
