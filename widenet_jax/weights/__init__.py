"""Stored models.

`trained` opens image classifiers, runs or exports, for use; `exported` and `model_card` write them;
`pretrained` loads what `config.init_from` names: a run, an export, or public ViT weights (`google`,
`huggingface`). `finetune` puts a pretrained backbone into a new vision model.
"""
