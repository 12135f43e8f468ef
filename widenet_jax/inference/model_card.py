"""The model card of an exported model: architecture, training, results, use."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from widenet_jax.specs import model_spec, task_spec

CARD = """# {title}

{what}, trained for {purpose} with widenet_jax, an implementation of
[WideNet](https://arxiv.org/abs/2107.11817).

| | |
|---|---|
{facts}
{classes}
## Use

Run in a checkout of widenet_jax, with this directory as `DIR`:

{commands}

{files}

{inputs} `config.json` has the whole configuration of the run.
"""

FILES = """`{params_file}` contains every parameter by path, in float32. Other programs read it
without widenet_jax:

    {read_line}"""
HUGGINGFACE = """`model.safetensors`, `config.json` and `tokenizer.json` are in the layout of
Hugging Face's transformers, which computes the same function:

    model = transformers.{name}.from_pretrained(DIR)
    tokenizer = transformers.AutoTokenizer.from_pretrained(DIR)"""

FINETUNE = "python -m widenet_jax.main --config=CONFIG --workdir=RUN --config.init_from=DIR"
READ_LINES = {
    "params.safetensors": 'params = safetensors.numpy.load_file("params.safetensors")',
    "params.npz": 'params = numpy.load("params.npz", allow_pickle=False)',
}
CLASSES_SHOWN = 20


def model_card(
    config: Mapping[str, Any],
    info: Mapping[str, Any],
    record: Mapping[str, Any],
    *,
    huggingface: str = "",
) -> str:
    """Returns the card as Markdown.

    Args:
      config: the run's, as plain dicts.
      info: facts of the data; `class_names`, where there are any.
      record: contents of `export.json`.
      huggingface: the model's class in transformers, for an export in that layout.
    """
    names = info.get("class_names", ())
    card, what = task_spec(config["task"]["name"]).card, describe_model(config["model"])
    facts = training_facts(config) | results(record)
    if huggingface:
        files = HUGGINGFACE.format(name=huggingface)
        commands = (FINETUNE,)  # no command opens this layout as a workdir
    else:
        name, commands = record["params_file"], card.commands
        files = FILES.format(params_file=name, read_line=READ_LINES[name])
    kind = what.split(":")[0]
    return CARD.format(
        title=f"{kind}, {len(names)} classes" if names else f"{kind}, {card.purpose}",
        what=what,
        purpose=card.purpose,
        facts="\n".join(f"| {name} | {value} |" for name, value in facts.items()),
        classes=f"\n## Classes\n\n{listed(names)}\n" if names else "",
        commands="\n".join(f"    {line}" for line in commands),
        files=files,
        inputs=card.inputs.format(**config["data"]),
    )


def describe_model(model: Mapping[str, Any]) -> str:
    """Describes a `config.model`: "WideNet: 12 blocks of width 768, 12 heads, ..."."""
    moe = model["moe"] if model["ffn"] == "moe" else None
    shares = model["share_attention"] or model["share_ffn"]
    spec, heads = model_spec(model["name"]), model["attention"].get("num_heads")
    parts = [
        f"{model['depth']} blocks of width {model['embed_dim']}",
        *([f"{heads} heads"] if heads else []),
        spec.detail.format(**model),
    ]
    if moe:
        parts.append(
            f"{moe['num_selected_experts']} of {moe['num_experts']} experts of width "
            f"{moe['mlp_dim']} for each token (blocks: {model['ffn_blocks']})"
        )
    elif model["ffn"] == "mlp":
        parts.append(f"feed-forward of width {model['mlp_dim']}")
    else:
        parts.append(f"feed-forward {model['ffn']} (blocks: {model['ffn_blocks']})")
    names = {"attention": "attention", "ffn": "feed-forward", "norms": "norms"}
    shared = [name for key, name in names.items() if model[f"share_{key}"]]
    if shared:
        parts.append(f"all blocks share {', '.join(shared)}")
    family = spec.families[2 * bool(moe) + bool(shares)]
    return f"{family}: {', '.join(parts)}"


def training_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rows on data, schedule and optimizer."""
    data, optimizer = config["data"], config["optimizer"]
    # Names without directories: a published card should not show paths of the machine.
    dataset = f"{data['source']} {data.get('name') or PurePath(data['path']).name}".strip()
    size = {"image_size": "image size", "max_length": "tokens"}
    return {
        "data": f"{dataset}, split {data['train_split']}",
        **{label: data[name] for name, label in size.items() if name in data},
        "started from": PurePath(config["init_from"]).name or "scratch",
        "length": f"{config['duration']}, batches of {config['batch_size']}",
        "optimizer": f"{optimizer['name']}, learning rate {optimizer['learning_rate']}, "
        f"weight decay {optimizer['weight_decay']}",
        "seed": config["seed"],
    }


def results(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rows on the run's final evaluation, its primary metric."""
    result = record["result"]
    facts = {"step": f"{record['step']:,}", "SHA-256 of the parameters": record["params_sha256"]}
    if not result:
        return facts | {
            "test": "not evaluated: the run has not finished, or did not evaluate this step"
        }
    name, unit = result["primary_metric"]["name"], result["unit"]
    value, count = result[f"test_{name}"], result[f"test_{unit}"]
    share = result["primary_metric"]["higher_is_better"] and 0 <= value <= 1
    told = f"{value:.2%}" if share else f"{value:.4f}"
    metric = f"{result['split']} {name.replace('_', ' ')}"
    return facts | {
        "parameters": f"{result['params']:,} (applied as {result['params_unrolled']:,})",
        metric: f"{told} of {count:,} {unit}",
    }


def listed(names: Sequence[str]) -> str:
    """Lists the first CLASSES_SHOWN names; `class_names.json` has all of them."""
    more = len(names) - CLASSES_SHOWN
    text = ", ".join(names[:CLASSES_SHOWN])
    return f"{text}, and {more:,} more in `class_names.json`" if more > 0 else text
