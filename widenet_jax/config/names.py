"""The field that a user means: of a misspelt name, or of one from another library."""

from collections.abc import Collection

from widenet_jax.errors import nearest, similar

# Fields, where it helps with an example of a value, and their names in other libraries.
ELSEWHERE = {
    "optimizer.learning_rate": "lr lrate base_lr peak_lr max_lr initial_lr init_lr eta step_size",
    "optimizer.end_learning_rate": "min_lr lr_min final_lr end_lr lr_end eta_min",
    "optimizer.schedule": "scheduler sched lr_scheduler lr_scheduler_type lr_schedule decay_type",
    "optimizer.name": "optim opt optimizer_name optimizer_type",
    'optimizer.warmup="500 steps"': "warmup_steps num_warmup_steps warmup_iters warmup_updates",
    'optimizer.warmup="5 epochs"': "warmup_epochs num_warmup_epochs",
    "optimizer.warmup=5%": "warmup_ratio warmup_fraction warmup_percent warmup_proportion",
    "optimizer.weight_decay": "wd decay l2 l2_reg weight_decay_rate",
    "optimizer.b1": "beta1 beta_1 adam_beta1 betas adam_b1",
    "optimizer.b2": "beta2 beta_2 adam_beta2 adam_b2",
    "optimizer.eps": "epsilon adam_epsilon opt_eps adam_eps",
    "optimizer.grad_clip_norm": "clip clip_grad clip_norm grad_clip max_grad_norm max_norm "
    "gradient_clipping gradient_clip_val grad_norm",
    "optimizer.accumulation_steps": "grad_accum grad_accum_steps gradient_accumulation "
    "gradient_accumulation_steps accum_steps accum_freq",
    "optimizer.layer_decay": "llrd layerwise_lr_decay lr_layer_decay layer_wise_decay",
    "optimizer.ema_decay": "ema model_ema model_ema_decay polyak",
    "optimizer.freeze=backbone": "linear_probe freeze_backbone freeze_encoder",
    'duration="10 epochs"': "epochs num_epochs num_train_epochs max_epochs n_epochs total_epochs",
    'duration="1000 steps"': "steps num_steps max_steps total_steps train_steps num_train_steps "
    "training_steps max_iters num_iterations iterations",
    "batch_size": "bs batch train_batch_size global_batch_size per_device_train_batch_size "
    "micro_batch_size device_batch_size",
    "evaluation.batch_size": "eval_batch_size per_device_eval_batch_size val_batch_size test_bs "
    "validation_batch_size",
    'evaluation.every="500 steps"': "eval_every eval_steps eval_interval eval_freq val_interval "
    "evaluation_strategy eval_strategy steps_per_eval val_check_interval",
    "evaluation.patience": "early_stopping early_stopping_patience early_stop es_patience",
    'checkpoint.every="500 steps"': "save_every save_steps save_interval save_freq ckpt_every "
    "checkpoint_steps checkpoint_every checkpoint_interval save_strategy",
    "checkpoint.keep": "max_to_keep save_total_limit keep_checkpoints checkpoint_hist keep_last",
    "log_every_steps": "log_every logging_steps log_interval log_steps log_freq print_freq",
    "seed": "random_seed rng_seed manual_seed prng_seed",
    "init_from": "pretrained pretrained_model checkpoint_path model_name_or_path from_pretrained "
    "initial_checkpoint finetune load_from restore_from weights",
    "data.path": "data_dir dataset_path dataset_dir data_root root data_path train_file input_dir",
    "data.source": "dataset dataset_type data_source",
    "data.name": "dataset_name tfds_name",
    "data.train_split": "train_set",
    "data.eval_split": "val_split validation_split test_split eval_set",
    "data.eval_fraction": "val_fraction validation_fraction val_size test_size holdout",
    "data.image_size": "img_size resolution input_size image_resolution crop_size",
    "data.max_length": "seq_len seq_length max_seq_len max_seq_length sequence_length block_size "
    "context_length n_ctx max_len",
    "data.num_workers": "workers n_workers dataloader_num_workers loader_workers nproc",
    "data.prefetch": "prefetch_factor prefetch_size num_prefetch",
    "task.label_smoothing": "smoothing label_smoothing_factor ls",
    "task.mask_fraction": "mlm_probability masked_lm_prob mask_prob masking_rate",
    "task.memory_length": "mem_len mem_length memory_size",
    "augment.mixup_alpha": "mixup mix_up",
    "augment.cutmix_alpha": "cutmix",
    "augment.flip": "hflip horizontal_flip random_flip",
    "augment.crop_area_min": "scale min_scale rrc_scale min_crop",
    "augment.eval_crop_fraction": "crop_pct crop_fraction center_crop",
    "augment.randaugment_layers": "randaug rand_augment autoaugment aa ra_n num_ops",
    "augment.randaugment_magnitude": "ra_m ra_magnitude",
    "augment.random_erasing": "reprob random_erase cutout erasing",
    "augment.color_jitter": "jitter colour_jitter",
    "model.depth": "num_layers n_layers layers n_layer num_hidden_layers num_blocks encoder_layers",
    "model.embed_dim": "hidden_size hidden_dim d_model n_embd dim width emb_dim model_dim",
    "model.attention.num_heads": "heads n_heads n_head num_attention_heads attention_heads",
    "model.mlp_dim": "intermediate_size ffn_dim d_ff dim_feedforward mlp_size ff_dim",
    "model.dropout": "dropout_rate drop drop_rate hidden_dropout_prob p_dropout",
    "model.patch_size": "patch",
    "model.activation": "act hidden_act activation_function nonlinearity",
    "model.norm_epsilon": "layer_norm_eps ln_eps layernorm_epsilon norm_eps",
    "model.dtype=bfloat16": "bf16 fp16 half precision mixed_precision amp half_precision",
    "model.remat=block": "gradient_checkpointing grad_checkpointing activation_checkpointing "
    "checkpoint_activations use_remat",
    "model.pool": "global_pool pooling classifier",
    "model.moe.num_experts": "experts expert_count n_experts num_local_experts n_routed_experts",
    "model.moe.num_selected_experts": "top_k topk num_experts_per_tok experts_per_token "
    "moe_top_k num_selected",
    "model.moe.capacity_factor": "capacity expert_capacity train_capacity_factor moe_capacity",
    "model.moe.losses.load_balance": "aux_loss aux_loss_coef router_aux_loss_coef aux_loss_weight "
    "load_balance_weight balance_loss moe_loss_weight",
    "model.moe.losses.z": "z_loss router_z_loss z_loss_weight router_z_loss_coef",
    "model.moe.router.noise_std": "router_noise jitter_noise router_jitter_noise gate_noise",
    "sharding.fsdp": "fsdp_size zero zero_stage num_fsdp",
    "sharding.expert": "expert_parallel expert_parallelism ep ep_size",
    "tracking.wandb_project": "wandb project wandb_name report_to",
    "tracking.tensorboard": "tb use_tensorboard",
}
OURS = {name: ours for ours, names in ELSEWHERE.items() for name in names.split()}


def same_name(asked: str, fields: Collection[str]) -> str | None:
    """Returns the field of this name in another section, or what other libraries call so.

    Args:
      asked: what the user wrote, such as "lr" or "model.batch_size".
      fields: the full names of the fields that there are.

    Returns:
      A field, perhaps with an example of a value, as in 'duration="10 epochs"'; None for none.
    """
    last = last_of(asked)
    fields = sorted(fields)  # of equally similar fields, the same is found in every process
    if here := [field for field in fields if last_of(field) == last]:
        return nearest(asked, here)
    foreign = elsewhere(fields)
    return foreign.get(last, foreign.get(asked.replace(".", "_")))


def nearest_name(asked: str, fields: Collection[str]) -> str | None:
    """Returns the field that the user may mean; None where no name is similar.

    In this order: a field that was taken for a section, one of a similar name in the section asked
    for, `same_name`, and one of a similar name in any section. Arguments as in `same_name`.
    """
    fields = sorted(fields)  # as in `same_name`
    section, _, last = asked.rpartition(".")
    if section in fields:
        return section
    inside = {last_of(field): field for field in fields if field.rpartition(".")[0] == section}
    if section and (near := similar(last, inside)):
        return inside[near]
    if found := same_name(asked, fields):
        return found
    shortest_last = sorted(fields, key=len, reverse=True)
    known = elsewhere(fields) | {last_of(field): field for field in shortest_last}
    known |= {field: field for field in fields}
    near = similar(last_of(asked), known)
    return known[near] if near else None


def elsewhere(fields: Collection[str]) -> dict[str, str]:
    """Returns our fields, perhaps with a value, by their names in other libraries."""
    return {name: ours for name, ours in OURS.items() if ours.partition("=")[0] in fields}


def last_of(name: str) -> str:
    """Returns a name without its sections, as "learning_rate" of "optimizer.Learning-Rate"."""
    return name.rpartition(".")[2].lower().replace("-", "_")
