"""The model card of an exported model: architecture, training, results, use."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from widenet_jax.nn.loop_settings import parse_loop
from widenet_jax.run.tables import primary_text, remark, routing_rows
from widenet_jax.specs import model_spec, task_spec

CARD = """---
{metadata}
---

# {title}

{what}, trained for {purpose} with widenet_jax, an implementation of
[WideNet](https://arxiv.org/abs/2107.11817).

| | |
|---|---|
| data | {dataset}, split {config[data][train_split]} |
| started from | {start} |
| length | {config[duration]}, batches of {config[batch_size]} |
| optimizer | {optimizer[name]}, learning rate {optimizer[learning_rate]}, \
weight decay {optimizer[weight_decay]} |
| seed | {config[seed]} |
| step | {record[step]:,} |
| SHA-256 of the parameters | {record[params_sha256]} |
{results}{more}
{classes}
## Use

Run in a checkout of widenet_jax, with this directory as `DIR`:

{commands}

{files}

{inputs} `config.json` has the whole configuration of the run.
"""

FILES = """`{params_file}` contains every parameter by path, in {dtype}. Other programs read it
without widenet_jax:

    {read_line}"""
PYTORCH = """

`pytorch_model.py` computes the model in PyTorch, in float32, without JAX; its first lines show how
to prepare an image. After `pip install torch safetensors`, in this directory:

    from pytorch_model import Classifier

    logits = Classifier()(images)  # float32 [B, channels, side, side] in [-1, 1]"""
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
# Names that huggingface.co has for licenses; it refuses a card with another text in that place.
LICENSES = ("apache-2.0", "mit", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0")
LICENSES += ("cc-by-nc-4.0", "cc-by-nc-sa-4.0")


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
      info: of the data; `class_names`, where there are any.
      record: contents of `export.json`.
      huggingface: the model's class in transformers, for an export in that layout.
    """
    names, data = info.get("class_names", ()), config["data"]
    card, what = task_spec(config["task"]["name"]).card, describe_model(config["model"])
    if huggingface:
        files = HUGGINGFACE.format(name=huggingface)
        commands = (FINETUNE,)  # no command opens this layout as a workdir
    else:
        name, pair = record["params_file"], ' --pair="Another."' * bool(info.get("pairs"))
        commands = [line + pair * ("--text=" in line) for line in card.commands]
        files = FILES.format(params_file=name, dtype=record["dtype"], read_line=READ_LINES[name])
        files += PYTORCH if "blocks" in record else ""
    kind = what.split(":")[0]
    # Names without directories: a published card should not show paths of the machine.
    dataset = f"{data['source']} {data.get('name') or PurePath(data['path']).name}".strip()
    license = str(record["card"].get("license", "")).lower()
    metadata = {"library_name": "transformers" if huggingface else "widenet_jax"}
    metadata |= {"pipeline_tag": card.pipeline, "license": license * (license in LICENSES)}
    return CARD.format(
        metadata="\n".join(f"{name}: {value}" for name, value in metadata.items() if value),
        config=config,
        optimizer=config["optimizer"],
        title=f"{kind}, {len(names)} classes" if names else f"{kind}, {card.purpose}",
        what=what,
        purpose=card.purpose,
        dataset=dataset,
        start=PurePath(config["init_from"]).name or "scratch",
        record=record,
        results=results(record["result"]),
        more="".join(f"\n| {title} | {text} |" for title, text in record["card"].items()),
        classes=f"\n## Classes\n\n{listed(names)}\n" if names else "",
        commands="\n".join(f"    {line}" for line in commands),
        files=files,
        inputs=card.inputs.format(**data),
    )


def describe_model(model: Mapping[str, Any]) -> str:
    """Describes a `config.model`: "WideNet: 12 blocks of width 768, 12 heads, ..."."""
    spec, heads, ffn = model_spec(model["name"]), model["attention"].get("num_heads"), model["ffn"]
    loop = parse_loop(model["loop"])
    shared = ", ".join(loop.shared())
    feed_forward = {
        "mlp": "feed-forward of width {mlp_dim}",
        "moe": "{moe[num_selected_experts]} of {moe[num_experts]} experts of width {moe[mlp_dim]} "
        "for each token (blocks: {ffn_blocks})",
    }.get(ffn, "feed-forward {ffn} (blocks: {ffn_blocks})")
    parts = [f"{loop.depth} blocks of width {{embed_dim}}"]
    parts += [f"{heads} heads"] if heads else []
    parts += [spec.detail, feed_forward]
    of_all = "all blocks" if loop.layers == 1 else f"blocks (layers x loops: {loop.text})"
    parts += [f"{of_all} share {shared}"] if shared else []
    shares = bool({"attention", "feed-forward"} & set(loop.shared()))
    family = spec.families[2 * (ffn == "moe") + shares]
    return f"{family}: {', '.join(parts)}".format(**model)


def origin(starts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns rows on the command and the code of a run, from the starts in environment.json."""
    if not starts:
        return {}
    program, *words = starts[-1]["argv"]
    # Directories say where a machine keeps its files.
    shown = [re.sub(r"^(--[\w.]+=)?(?:/|~|gs:|\.\.?/).*/", r"\1", word) for word in words]
    name = PurePath(program).name
    name = "python -m widenet_jax.main" if name == "main.py" else name
    command = " ".join([name, *map(shlex.quote, shown)])
    found = {"command": f"`{command.replace('|', chr(92) + '|')}`"}
    states = [start["git"] for start in starts if start.get("git")]
    codes = [of["commit"] + " with changes" * of["changed"] for of in states]
    return found | ({"commit": ", ".join(dict.fromkeys(codes))} if codes else {})


def results(result: Mapping[str, Any]) -> str:
    """Returns the rows on the run's final evaluation: parameters and primary metric."""
    if not result:
        return "| test | not evaluated: the run has not finished, or did not evaluate this step |"
    applied = f"{result['params']:,} (applied as {result['params_unrolled']:,})"
    name = result["primary_metric"]["name"]
    metric = f"{result['split']} {name.replace('_', ' ')}"
    value = primary_text(result) + remark(name, result)
    rows = [("parameters", applied), (metric, value), *routing_rows(result)]
    return "\n".join(f"| {title} | {text} |" for title, text in rows)


def listed(names: Sequence[str]) -> str:
    """Lists the first CLASSES_SHOWN names; `class_names.json` has all of them."""
    more = len(names) - CLASSES_SHOWN
    text = ", ".join(names[:CLASSES_SHOWN])
    return f"{text}, and {more:,} more in `class_names.json`" if more > 0 else text
