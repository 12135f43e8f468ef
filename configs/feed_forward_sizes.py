"""Feed-forwards other than a mixture of experts as sections of `config.model`, as plain data."""

from collections.abc import Collection, Mapping

from configs.matching import dense_parameters, matched_num_keys
from widenet_jax.errors import BadInputError, choose_option

# option ffn -> config.model.ffn
FFNS = {"dense": "mlp", "moe": "moe", "top_k": "top_k_mlp", "product_key": "product_key"}

# Options of images and texts alike, and the feed-forward that each belongs to.
OPTIONS = {"ffn": str, "num_active": int, "num_keys": int}
ONE_FFN = {"num_active": "top_k", "num_keys": "product_key"}


def choose_ffn(name: str, options: Mapping, *, usual: str, of_experts: Collection[str]) -> str:
    """Returns the key of `FFNS` that the options of a variant choose.

    Args:
      name: of the variant, for messages.
      options: as parsed.
      usual: where they do not say.
      of_experts: options that only a mixture of experts has.

    Raises:
      BadInputError: an unknown feed-forward, or an option that has no effect on it.
    """
    ffn = options.get("ffn", usual)
    choose_option(FFNS, ffn, option="ffn")
    for key in options:
        if key in of_experts and ffn != "moe":
            raise BadInputError(f"{name} has no experts, so option {key} has no effect; remove it")
        if ONE_FFN.get(key, ffn) != ffn:
            raise BadInputError(f"option {key} needs ffn={ONE_FFN[key]}; add it, or remove {key}")
    return ffn


def ffn_sections(ffn: str, options: Mapping, *, embed_dim: int, mlp_dim: int) -> dict[str, dict]:
    """Returns the section of a feed-forward that replaces a dense one of width F, by its name.

    {} for the dense one and for a mixture of experts, whose section is `sizes.experts_section`. The
    memory of product keys has as many parameters as the dense layer.
    """
    if ffn == "top_k":
        section = top_k_section(options, mlp_dim=mlp_dim, num_active=max(1, mlp_dim // 8))
        return {FFNS[ffn]: section | {"activation": "relu"}}
    if ffn == "product_key":
        budget = dense_parameters(embed_dim, mlp_dim)
        num_keys = matched_num_keys(budget, embed_dim, 4)
        return {FFNS[ffn]: product_key_section(options, num_keys=num_keys, key_heads=4, knn=32)}
    return {}


def top_k_section(options: Mapping, *, mlp_dim: int, num_active: int) -> dict:
    """Returns the section `config.model.top_k_mlp`."""
    return {
        "mlp_dim": mlp_dim,  # F
        "num_active": options.get("num_active", num_active),  # the largest of the F hidden units
    }


def product_key_section(options: Mapping, *, num_keys: int, key_heads: int, knn: int) -> dict:
    """Returns the section `config.model.product_key`; options come before the other arguments."""
    num_keys = options.get("num_keys", num_keys)
    return {
        "num_keys": num_keys,  # n of each half; the table has n^2 values
        "num_heads": options.get("key_heads", key_heads),  # choices from the same table
        "knn": options.get("knn", min(knn, num_keys**2)),  # values that a head reads
        "weights": options.get("weights", "relu"),  # of the values: relu or softmax of the scores
        "combine_heads": options.get("combine_heads", "after"),  # before: as the paper ran
        "query_dim": options.get("query_dim", 0),  # of a projected query; 0: the token itself
        "table_init": options.get("table_init", "embed_fan"),  # or: values_fan, lample
    }
