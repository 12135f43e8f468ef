"""Stored models.

`trained` opens runs and exports for use; `exported` and `model_card` write them, and
`huggingface_export` writes those that Hugging Face's library has, too. `pretrained` loads what
`config.init_from` names: a run, an export, or public weights (`google`, `huggingface`,
`huggingface_text`). `finetune` puts them into a new model, and `pretrained_config` looks up the
`config.model` that they need.
"""
