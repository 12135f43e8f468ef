"""Trained and pretrained models.

`trained` opens runs and exports; `exported` and `model_card` write and read exports, `float16`
halves them, and `pytorch_model` is the file for PyTorch in them. `pretrained` opens what
`config.init_from` and commands name (a run, an export, or public weights, read by the slices) and
puts it into a new model. `pretrained_config` looks up its `config.model`, without JAX.
`over_source`, `few_shot` and `classification` evaluate, by `label_sets` where labels are several;
`api` is the package's Python interface.
"""
