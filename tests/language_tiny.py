"""Config of a small language model of the embedded novel's bytes."""

from ml_collections import ConfigDict

from configs import defaults

MODEL = {
    "name": "language_model",
    **{"embed_dim": 32, "depth": 2, "num_heads": 2, "head_dim": 12, "mlp_dim": 64},
    **{"dropout": 0.1, "norm_epsilon": 1e-5, "activation": "relu", "kernel_init": "pre_norm"},
    **{"ffn": "mlp", "ffn_blocks": "all", "routing_groups": 0, "moe": None},
    **{"share_attention": False, "share_ffn": False, "share_norms": False},
    **{"unroll": True, "remat": "none", "dtype": "float32"},
}


def get_config() -> ConfigDict:
    """Returns the config. An epoch has 814 steps of 16 rows."""
    config = defaults.get_config(dict(MODEL), "language_modeling")
    config.batch_size = 16
    config.data.update(source="tiny_stream", max_length=32)
    config.optimizer.update(learning_rate=3e-3, grad_clip_norm=0.25)
    return config
