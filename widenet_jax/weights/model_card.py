"""The model card of an exported image classifier: architecture, training, accuracy, use."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

CARD = """# {title}

{what}, trained for image classification with widenet_jax, an implementation of
[WideNet](https://arxiv.org/abs/2107.11817).

| | |
|---|---|
{facts}

## Classes

{classes}

## Use

Run in a checkout of widenet_jax, with this directory as `DIR`:

    python scripts/predict.py --workdir=DIR photo.jpg --top=5
    python scripts/evaluate.py --workdir=DIR \\
        --config.data.source=image_folder --config.data.path=PHOTOS --config.data.eval_split=val
    python -m widenet_jax.main --config=CONFIG --workdir=RUN --config.init_from=DIR   # finetune

`{params_file}` contains every parameter by path, in float32. Other programs read it without
widenet_jax:

    {read_line}

Images are {size} x {size} pixels, scaled to [-1, 1] as value / 127.5 - 1. `config.json` has the
whole configuration of the run.
"""

READ_LINES = {
    "params.safetensors": 'params = safetensors.numpy.load_file("params.safetensors")',
    "params.npz": 'params = numpy.load("params.npz", allow_pickle=False)',
}
CLASSES_SHOWN = 20


def model_card(
    config: Mapping[str, Any], class_names: Sequence[str], record: Mapping[str, Any]
) -> str:
    """Returns the card as Markdown.

    Args:
      config: the run's, as plain dicts.
      class_names: label k is class_names[k].
      record: contents of `export.json`.
    """
    what = describe_model(config["model"])
    facts = training_facts(config) | results(record)
    return CARD.format(
        title=f"{what.split(':')[0]}, {len(class_names)} classes",
        what=what,
        facts="\n".join(f"| {name} | {value} |" for name, value in facts.items()),
        classes=listed(class_names),
        params_file=record["params_file"],
        read_line=READ_LINES[record["params_file"]],
        size=config["data"]["image_size"],
    )


def describe_model(model: Mapping[str, Any]) -> str:
    """Describes a `config.model`: "WideNet: 12 blocks of width 768, 12 heads, ..."."""
    moe = model["moe"] if model["ffn"] == "moe" else None
    shares = model["share_attention"] or model["share_ffn"]
    family = {(True, True): "WideNet", (True, False): "ViT-MoE", (False, True): "Shared ViT"}.get(
        (bool(moe), bool(shares)), "ViT"
    )
    parts = [
        f"{model['depth']} blocks of width {model['embed_dim']}",
        f"{model['num_heads']} heads",
        f"patches of {model['patch_size']} pixels",
    ]
    if moe:
        parts.append(
            f"{moe['num_selected_experts']} of {moe['num_experts']} experts of width "
            f"{moe['mlp_dim']} for each token (blocks: {model['ffn_blocks']})"
        )
    else:
        parts.append(f"feed-forward of width {model['mlp_dim']}")
    names = {"attention": "attention", "ffn": "feed-forward", "norms": "norms"}
    shared = [name for key, name in names.items() if model[f"share_{key}"]]
    if shared:
        parts.append(f"all blocks share {', '.join(shared)}")
    return f"{family}: {', '.join(parts)}"


def training_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rows on data, schedule and optimizer."""
    data, optimizer = config["data"], config["optimizer"]
    dataset = f"{data['source']} {data['name'] or PurePath(data['path']).name}".strip()
    return {
        # Names without directories: a published card should not show paths of the machine.
        "data": f"{dataset}, split {data['train_split']}",
        "image size": data["image_size"],
        "started from": PurePath(config["init_from"]).name or "scratch",
        "length": f"{config['duration']}, batches of {config['batch_size']}",
        "optimizer": f"{optimizer['name']}, learning rate {optimizer['learning_rate']}, "
        f"weight decay {optimizer['weight_decay']}",
        "seed": config["seed"],
    }


def results(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rows on the run's final evaluation."""
    result = record["result"]
    facts = {"step": f"{record['step']:,}", "SHA-256 of the parameters": record["params_sha256"]}
    if not result:
        return facts | {"test accuracy": "not evaluated: the run has not finished"}
    return facts | {
        "parameters": f"{result['params']:,} (applied as {result['params_unrolled']:,})",
        "test accuracy": f"{result['test_accuracy']:.2%} of {result['test_images']:,} images",
    }


def listed(names: Sequence[str]) -> str:
    """Lists the first CLASSES_SHOWN names; `class_names.json` has all of them."""
    more = len(names) - CLASSES_SHOWN
    text = ", ".join(names[:CLASSES_SHOWN])
    return f"{text}, and {more:,} more in `class_names.json`" if more > 0 else text
