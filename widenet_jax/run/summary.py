"""Messages of a run to its user: the configuration at the start, and the result at the end."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from clu import parameter_overview
from etils import epath

from widenet_jax.checkpoint.checkpoints import Checkpoints
from widenet_jax.experiment import Experiment, input_spec
from widenet_jax.files import write_json
from widenet_jax.nn.moe.dispatch import dispatch_methods, dispatch_text
from widenet_jax.optim.build import count_frozen
from widenet_jax.sharding import platform
from widenet_jax.task import Baseline, PrimaryMetric, Task
from widenet_jax.typing import PyTree

BEST_CHECKPOINT = "best_checkpoint"  # in front of its metric and step in result.json


def describe(experiment: Experiment, params: PyTree, start_step: int) -> str:
    """Returns a table of the parameters, and lines on devices, dispatch, start and length."""
    mesh, counts = experiment.mesh, experiment.parameter_counts
    config, num_examples = experiment.config, experiment.data_info.num_examples
    unit = experiment.task.unit
    axes = ", ".join(f"{name} {size}" for name, size in mesh.shape.items())
    begin = "starting"
    if start_step:
        begin = f"resuming after step {start_step:,}"
    elif config.init_from:
        begin = f"starting from {config.init_from}"
    lines = [
        parameter_overview.get_parameter_overview(params, include_stats=False),
        f"{counts['params']:,} parameters, applied as {counts['params_unrolled']:,}; "
        f"{mesh.size} {mesh.devices.flat[0].device_kind} devices ({axes}), "
        f"{jax.process_count()} hosts",
    ]
    if frozen := count_frozen(params, config.optimizer.freeze):
        lines.append(f"frozen: {frozen:,}; trained: {counts['params'] - frozen:,} parameters")
    if experiment.model.ffn == "moe":
        tokens = experiment.model.num_tokens(input_spec(experiment.task))
        methods = dispatch_methods(experiment.model.stack, tokens, platform=platform())
        lines.append(f"dispatch: {dispatch_text(methods)}")
    lines.append(f"{begin}: {experiment.total_steps:,} steps of {config.batch_size} {unit}")
    if num_examples < config.batch_size:
        lines.append(
            f"all {num_examples:,} training {unit} are fewer than one batch, so that every step "
            "spans several epochs; config.batch_size and config.duration set how much is trained"
        )
    return "\n".join(lines)


def result_of(experiment: Experiment, metrics: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Returns `more`, the number of parameters, and the `result_metrics` of a split."""
    more |= experiment.parameter_counts | {"split": experiment.config.data.eval_split}
    return more | result_metrics(metrics, experiment.task)


def result_metrics(metrics: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """Returns what `result.json` says of an evaluation: `test_<metric>`, routing over all blocks.

    Args:
      metrics: of `evaluate`.
      task: gives the primary metric, the unit, the baseline and the remarks.
    """
    scalars = {name: value for name, value in metrics.items() if np.ndim(value) == 0}
    bad = scalars.pop("bad_examples", 0)
    result = {f"test_{name}": value for name, value in scalars.items()}
    result |= {"bad_examples": int(bad)} if bad else {}
    result |= {"primary_metric": task.primary_metric._asdict(), "unit": task.unit}
    if task.baseline:
        result["baseline"] = task.baseline._asdict()
    if task.remarks:
        result["remarks"] = dict(task.remarks)
    return result | routing_means(metrics)


def routing_means(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns means over all blocks; {} of a dense model.

    "drop_rate" and "expert_load"; where experts choose tokens, "no_expert_rate".
    """
    if "load" not in metrics:
        return {}
    rates = [name for name in ("no_expert_rate", "drop_rate") if name in metrics]
    return {
        **{name: float(np.mean(metrics[name])) for name in rates},
        "expert_load": np.mean(metrics["load"], axis=0).round(4).tolist(),
    }


def best_of(checkpoints: Checkpoints) -> dict[str, Any]:
    """Returns the primary metric and the step of the best evaluation; {} where there is none.

    They are `best_checkpoint_<primary metric>` and `best_checkpoint_step`.
    """
    if checkpoints.best_value is None:
        return {}
    name = f"{BEST_CHECKPOINT}_{checkpoints.primary_metric.name}"
    return {name: checkpoints.best_value, f"{BEST_CHECKPOINT}_step": checkpoints.best.step}


def ended_early(experiment: Experiment, checkpoints: Checkpoints, step: int) -> str:
    """Returns a line about a run that ended before its last step; "" of every other one."""
    if step == experiment.total_steps:
        return ""
    name = checkpoints.primary_metric.name.replace("_", " ")
    return (
        f"ended early, after step {step:,} of {experiment.total_steps:,}: no better {name} than "
        f"{checkpoints.best_value:.4f} after step {checkpoints.best.step:,}, as "
        f"config.evaluation.patience={experiment.config.evaluation.patience} asks for"
    )


def loss_text(task: Task, metrics: Mapping[str, Any]) -> str:
    """Returns a training step's loss, and the task's baseline beside the metric it belongs to."""
    text = f"loss {float(metrics['loss']):.4f}"
    if baseline := task.baseline:
        value = float(metrics[baseline.metric])
        text += f", {baseline.metric.replace('_', ' ')} {value:.4f} ({baseline_text(baseline)})"
    return text


def baseline_text(baseline: Baseline) -> str:
    """Returns the name and the value: "unigram entropy 6.6201"."""
    return f"{baseline.name} {baseline.value:.4f}"


def unread(result: Mapping[str, Any]) -> str:
    """Returns a line about the examples that a run has skipped; "" if all could be read."""
    unit = f"{result['unit']} that could not be read"
    drawn, left_out = result.get("train_bad_examples", 0), result.get("bad_examples", 0)
    lines = [f"{drawn:,} times training met {unit}, and took others"] if drawn else []
    lines += [f"the evaluation left out {left_out:,} {unit}"] if left_out else []
    return "; ".join(lines)


def unbeaten(task: Task, metrics: Mapping[str, Any]) -> str:
    """Returns a line about an evaluation that does not beat the task's baseline; "" if it does."""
    baseline = task.baseline
    if baseline is None:
        return ""
    metric = PrimaryMetric(baseline.metric, baseline.higher_is_better)
    if metric.better(metrics[metric.name], baseline.value):
        return ""
    name, side = metric.name.replace("_", " "), "above" if metric.higher_is_better else "below"
    return (
        f"{name} {metrics[baseline.metric]:.4f} is not {side} the {baseline_text(baseline)}: "
        f"{baseline.advice}"
    )


def write_result(workdir: epath.Path, result: dict[str, Any]) -> None:
    """Writes result.json and draws the learning curve."""
    from widenet_jax.run.figures import draw_learning_curves  # takes a second to import

    write_json(workdir / "result.json", result)
    primary_metric = result["primary_metric"]["name"]
    draw_learning_curves([workdir], workdir / "learning_curve.png", metric=primary_metric)
