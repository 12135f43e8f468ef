"""Public weights of vision transformers, as parameters of ours."""

PRE_NORM = {"norm": "layer", "norm_position": "pre"}  # fields of `config.model` of every ViT
