"""Stored models.

`trained` opens runs and exports for use; `exported` and `model_card` write and read exports.
`pretrained` loads what `config.init_from` names: a run, an export, or public weights, whose readers
are in the slices. `finetune` puts them into a new model, and `pretrained_config` looks up the
`config.model` that they need.
"""
