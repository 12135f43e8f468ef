"""The field that a user means: of a misspelt name, or of one from another library."""

from collections.abc import Collection, Mapping
from typing import Any

from widenet_jax.errors import BadInputError, nearest, similar

# Our activation for each of Hugging Face's names of the same function.
ACTIVATIONS = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate"), "gelu_tanh"),
    "relu": "relu",
}
# Fields, where it helps with an example of a value, and their names in other libraries.
ELSEWHERE = {
    "optimizer.learning_rate": "lr lrate base_lr peak_lr max_lr initial_lr init_lr step_size",
    "optimizer.schedule": "scheduler lr_scheduler lr_scheduler_type lr_schedule decay_type",
    "optimizer.name": "optim opt optimizer_name optimizer_type",
    'optimizer.warmup="500 steps"': "warmup_steps num_warmup_steps warmup_iters warmup_updates",
    "optimizer.weight_decay": "wd decay l2 l2_reg weight_decay_rate",
    "optimizer.b1": "beta1 beta_1 adam_beta1 betas adam_b1",
    "optimizer.b2": "beta2 beta_2 adam_beta2 adam_b2",
    "optimizer.grad_clip_norm": "clip clip_grad clip_norm max_grad_norm gradient_clip_val",
    "optimizer.accumulation_steps": "grad_accum gradient_accumulation_steps accum_steps accum_freq",
    'duration="10 epochs"': "epochs num_epochs num_train_epochs max_epochs n_epochs total_epochs",
    'duration="1000 steps"': "steps num_steps max_steps total_steps train_steps max_iters",
    "batch_size": "bs batch train_batch_size global_batch_size per_device_train_batch_size",
    "evaluation.batch_size": "eval_batch_size per_device_eval_batch_size val_batch_size",
    'evaluation.every="500 steps"': "eval_every eval_steps eval_interval eval_freq val_interval",
    'checkpoint.every="500 steps"': "save_every save_steps save_interval save_freq ckpt_every",
    "checkpoint.keep": "max_to_keep save_total_limit keep_checkpoints checkpoint_hist keep_last",
    "init_from": "pretrained checkpoint_path model_name_or_path from_pretrained finetune weights",
    "data.path": "data_dir dataset_path dataset_dir data_root root data_path train_file",
    "data.image_size": "img_size resolution input_size image_resolution crop_size",
    "data.max_length": "seq_len seq_length max_seq_len max_seq_length block_size context_length",
    "model.loop.core": "depth num_layers n_layers layers n_layer num_hidden_layers num_blocks",
    "model.embed_dim": "hidden_size hidden_dim d_model n_embd dim width emb_dim model_dim",
    "model.attention.num_heads": "heads n_heads n_head num_attention_heads attention_heads",
    "model.mlp_dim": "intermediate_size ffn_dim d_ff dim_feedforward mlp_size ff_dim",
    "model.dropout": "dropout_rate drop drop_rate hidden_dropout_prob p_dropout",
    "model.dtype=bfloat16": "bf16 fp16 half precision mixed_precision amp half_precision",
    "model.remat=block": "gradient_checkpointing grad_checkpointing activation_checkpointing",
    "model.moe.num_selected_experts": "top_k topk num_experts_per_tok experts_per_token",
    "model.moe.losses.load_balance": "aux_loss aux_loss_coef router_aux_loss_coef balance_loss",
    "tracking.wandb_project": "wandb project wandb_name report_to",
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
    section, _, last = asked.rpartition(".")
    if section in fields:
        return section
    inside = {last_of(field): field for field in fields if field.rpartition(".")[0] == section}
    if section and (near := similar(last, inside)):
        return inside[near]
    if found := same_name(asked, fields):
        return found
    known = elsewhere(fields)
    for field in sorted(fields, key=lambda field: (-len(field), field)):  # the shortest stays
        known |= {last_of(field): field, field: field}
    near = similar(last_of(asked), known)
    return known[near] if near else None


def elsewhere(fields: Collection[str]) -> dict[str, str]:
    """Returns our fields, perhaps with a value, by their names in other libraries."""
    return {name: ours for name, ours in OURS.items() if ours.partition("=")[0] in fields}


def last_of(name: str) -> str:
    """Returns a name without its sections, as "learning_rate" of "optimizer.Learning-Rate"."""
    return name.rpartition(".")[2].lower().replace("-", "_")


def activation_of(config: Mapping[str, Any], default: str, *, source: str) -> str:
    """Returns our name of `hidden_act`; raises BadInputError if our models do not have it."""
    name = config.get("hidden_act", default)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise BadInputError(
            f"{source}: hidden_act={name!r} is not an activation of our models; they have "
            f"{', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]
