"""The model card of an exported model: what it is, how it was trained, what it reaches."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

CARD = """# {title}

{what}, trained with [widenet_jax](https://arxiv.org/abs/2107.11817) for image classification.

| | |
|---|---|
{facts}

## Classes

{classes}

## Use

In a checkout of widenet_jax, with this directory as `DIR`:

    python scripts/predict.py --workdir=DIR photo.jpg --top=5
    python scripts/evaluate.py --workdir=DIR \\
        --config.data.source=image_folder --config.data.path=PHOTOS --config.data.eval_split=val
    python -m widenet_jax.main --config=CONFIG --workdir=RUN --config.init_from=DIR   # finetune

`{params_file}` holds every parameter (float32) under its path; other programs read it without
widenet_jax:

    {read_line}

Pixels go in as value / 127.5 - 1, that is, within [-1, 1], {size} x {size}. The whole
configuration of the run is in `config.json`.
"""

READ_LINES = {
    "params.safetensors": 'params = safetensors.numpy.load_file("params.safetensors")',
    "params.npz": 'params = numpy.load("params.npz", allow_pickle=False)',
}
CLASSES_SHOWN = 20


def model_card(
    config: Mapping[str, Any], class_names: Sequence[str], record: Mapping[str, Any]
) -> str:
    """Markdown.

    Args:
      config: of the run, plain dicts.
      class_names: label k is class_names[k].
      record: `export.json`.
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
    """ "WideNet: 12 blocks of 768, ..." """
    moe = model["moe"]
    shares = model["share_attention"] or model["share_ffn"]
    family = {(True, True): "WideNet", (True, False): "ViT-MoE", (False, True): "Shared ViT"}.get(
        (bool(moe), bool(shares)), "ViT"
    )
    parts = [
        f"{model['depth']} blocks of {model['embed_dim']}",
        f"{model['num_heads']} heads",
        f"patches of {model['patch_size']}",
    ]
    if moe:
        parts.append(
            f"{moe['num_selected_experts']} of {moe['num_experts']} experts of {moe['mlp_dim']} "
            f"a token (blocks: {moe['blocks']})"
        )
    else:
        parts.append(f"feed-forward of {model['mlp_dim']}")
    shared = [
        name
        for name, key in (
            ("attention", "share_attention"),
            ("feed-forward", "share_ffn"),
            ("norms", "share_norms"),
        )
        if model[key]
    ]
    if shared:
        parts.append(f"all blocks share {', '.join(shared)}")
    return f"{family}: {', '.join(parts)}"


def training_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    data, optimizer = config["data"], config["optimizer"]
    return {
        # The name of the directory only: where it lay is nobody's business.
        "data": f"{data['source']} {data['name'] or PurePath(data['path']).name}, "
        f"split {data['train_split']}",
        "image size": data["image_size"],
        "started from": config["init_from"] or "scratch",
        "length": f"{config['duration']}, batches of {config['batch_size']}",
        "optimizer": f"{optimizer['name']}, learning rate {optimizer['learning_rate']}, "
        f"weight decay {optimizer['weight_decay']}",
        "seed": config["seed"],
    }


def results(record: Mapping[str, Any]) -> dict[str, Any]:
    """Of the run's own evaluation, where it came to one."""
    result = record["result"]
    facts = {"step": f"{record['step']:,}", "SHA-256 of the parameters": record["params_sha256"]}
    if not result:
        return facts | {"test accuracy": "not evaluated: the run had not ended"}
    return facts | {
        "parameters": f"{result['params']:,} (applied as {result['params_unrolled']:,})",
        "test accuracy": f"{result['test_accuracy']:.2%} of {result['test_images']:,} images",
    }


def listed(names: Sequence[str]) -> str:
    """The first ones; all of them are in `class_names.json`."""
    more = len(names) - CLASSES_SHOWN
    text = ", ".join(names[:CLASSES_SHOWN])
    return f"{text}, and {more:,} more in `class_names.json`" if more > 0 else text
