"""A report on this machine's devices: peaks, attention, dispatch, and training steps beside plans.

It is meant to be sent by users whose devices nobody else has. Whatever fails is a line of the
report, nothing is begun after ten minutes, and what was measured is written part by part.
"""

import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

import widenet_jax
from widenet_jax.config.files import load_config
from widenet_jax.errors import BadInputError, RunFailedError
from widenet_jax.experiment import build_experiment
from widenet_jax.files import write_json, write_text
from widenet_jax.nn.attention.implementations import AUTO, candidate_for
from widenet_jax.nn.moe.dispatch import ANYWHERE
from widenet_jax.ops.benchmark.feed_forward import DispatchSize, dispatch_output, dispatch_row
from widenet_jax.ops.benchmark.report import cell, chip_of, median_seconds, mfu, table
from widenet_jax.ops.benchmark.train_step import train_step_row
from widenet_jax.ops.plan.planner import data_info
from widenet_jax.run.figures import PALETTE, save, subplots
from widenet_jax.run.kernel_trial import (
    TOLERANCE,
    Problem,
    chosen_by_measuring,
    difference,
    measured,
)
from widenet_jax.run.workdir import environment


class Sizes(NamedTuple):
    """What a report measures.

    Attributes:
      dtype: of the product, of attention and of dispatch.
      width: rows and columns of the product's matrices.
      mebibytes: of the array that is read and written.
      attention: what attention computes.
      dispatch: of the layer with experts.
      configs: whose training steps are timed.
      batch: the most examples of a step on each device with LARGE memory; a quarter on others.
      calls: of a step, of the product and of the copy in each round.
    """

    dtype: str
    width: int
    mebibytes: int
    attention: tuple[Problem, ...]
    dispatch: DispatchSize
    configs: tuple[str, ...]
    batch: int
    calls: int


BERT = Problem((16, 512, 12, 64), "bfloat16", mask=True, segment_ids=False)
ACCELERATOR = Sizes(
    "bfloat16", 8192, 512,
    (BERT, BERT._replace(shape=(16, 196, 12, 64), mask=False),
     BERT._replace(shape=(8, 1024, 8, 128), mask=False, segment_ids=True),
     BERT._replace(mask=False, causal=True),
     # A layer of wt_b after a memory.
     Problem((8, 512, 16, 64), "bfloat16", False, False, memory=512, waves=256)),
    DispatchSize(16, 196, 16, 4, 2, 768, 3072),  # of widenet_b
    ("configs/imagenet.py:vit_b", "configs/imagenet.py:widenet_b",
     "configs/text_pretrain.py:albert", "configs/language_model.py:wt_s"), 128, 5
)  # fmt: skip
CPU = Sizes(
    "float32", 1024, 64,
    (BERT._replace(shape=(4, 128, 4, 32), dtype="float32"),
     Problem((4, 49, 4, 32), "float32", mask=False, segment_ids=False)),
    DispatchSize(4, 49, 4, 4, 2, 64, 128),
    ("configs/digits.py:widenet_tiny", "configs/text_tiny.py:albert_tiny",
     "configs/language_model.py:tiny"), 32, 3
)  # fmt: skip
LARGE = 17 * 2**30  # bytes that JAX may use: more than of a device with 16 GiB
MEASURING, PLANNING = 420, 570  # seconds after which nothing more is measured, or planned
PLANNED = {"planned_ms": "step_ms", "planned_serial_ms": "serial_ms",
           "planned_collective_ms": "collective_ms", "planned_gib": "hbm_peak_gib"}  # fmt: skip
TITLES = {
    "peak": "Peak of one device, and its share of the data sheet's where that is known",
    "steps": "Training steps, and plans of the same",
    "attention": "Layers of attention [B, T, N, H], forward and backward, with projections; "
                 "difference of attention's output and gradients from xla's",
    "dispatch": "Dispatch as in WideNet, forward and backward; difference of output and gradient "
                "from einsum's",
    "failures": "Failed, or left out",
}  # fmt: skip


def measure(
    *,
    rounds: int,
    plan: Callable[..., dict | str],
    note: Callable[[str], None],
    keep: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Measures the devices of this machine.

    Args:
      rounds: number of rounds; the median counts.
      plan: as `cli.plan.plan_of`.
      note: receives a line before each part.
      keep: receives the report after each part.

    Returns:
      A JSON object: device, devices, date, host, python, platform, backend, packages, git, seconds,
      and for each key of TITLES a list of rows.
    """
    start, devices, here = time.perf_counter(), jax.devices(), environment()
    report = {
        "device": devices[0].device_kind,
        "devices": len(devices),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "backend": " ".join(devices[0].client.platform_version.split()),
        **{name: here[name] for name in ("python", "platform", "git")},
        "packages": here["packages"] | {"widenet_jax": widenet_jax.__version__},
        "seconds": 0.0,
        "finished": False,
        **{kind: [] for kind in TITLES},
    }
    for kind, name, work in parts(CPU if devices[0].platform == "cpu" else ACCELERATOR, rounds):
        elapsed = time.perf_counter() - start
        note(f"{elapsed:.0f} s: {kind}, {name}")
        try:
            if elapsed > MEASURING:
                raise TimeoutError(f"left out, as {MEASURING} s had passed")
            report[kind].append(work())
        except Exception as error:  # a compiler's, in whatever class
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            report["failures"].append({"part": f"{kind}, {name}", "reason": reason})
        report["seconds"] = time.perf_counter() - start
        keep(report)
    left = max(PLANNING - (time.perf_counter() - start), 1)
    add_plans(report, partial(plan, timeout=left))
    return report | {"seconds": time.perf_counter() - start, "finished": True}


def parts(sizes: Sizes, rounds: int) -> Iterator[tuple[str, str, Callable[[], dict[str, Any]]]]:
    """Yields the report's list that a row belongs to, a name, and a function that measures it."""
    yield "peak", "product", partial(product_row, sizes, rounds)
    yield "peak", "memory", partial(memory_row, sizes, rounds)
    for name in sizes.configs:
        yield "steps", name, partial(step_row, name, sizes, rounds)
    attend, output = cache(measured), cache(partial(dispatch_output, dtype=sizes.dtype))
    for problem in sizes.attention:
        kind = {"name": "full" if problem.memory is None else "relative"}
        for name in filter(None, ("xla", candidate_for(kind, jax.default_backend()))):
            what = f"{name} {list(problem.shape)} {hides(problem)}"
            yield "attention", what.strip(), partial(attention_row, attend, problem, name)
    for method in ANYWHERE:
        yield "dispatch", method, partial(method_row, output, method, sizes, rounds)


def hides(problem: Problem) -> str:
    """Returns what hides keys, in words."""
    words = [name for name in ("mask", "segment_ids", "causal") if getattr(problem, name)]
    words += [] if problem.memory is None else [f"memory {problem.memory}"]
    return ", ".join(words)


def product_row(sizes: Sizes, rounds: int) -> dict[str, Any]:
    """Times the product of two square matrices on the first device."""
    matrix = jax.random.normal(jax.random.key(0), (sizes.width, sizes.width), sizes.dtype)
    call = partial(jax.jit(jnp.matmul), matrix, matrix)
    rate = 2 * sizes.width**3 / median_seconds(call, rounds=rounds, calls=sizes.calls)
    what = f"product of {sizes.dtype} matrices, {sizes.width} x {sizes.width}"
    share = mfu(rate, jax.devices()[0].device_kind, 1)
    return {"what": what, "rate": rate / 1e12, "unit": "TFLOP/s", "share": share}


def memory_row(sizes: Sizes, rounds: int) -> dict[str, Any]:
    """Times reading and writing an array in the first device's memory."""
    chip, x = chip_of(jax.devices()[0].device_kind), jnp.zeros(sizes.mebibytes * 2**18)
    call = partial(jax.jit(lambda x: x + 1), x)
    rate = 2 * x.nbytes / median_seconds(call, rounds=rounds, calls=sizes.calls)
    what = f"reading and writing {sizes.mebibytes} MiB"
    share = chip and rate / chip.hbm_bandwidth
    return {"what": what, "rate": rate / 1e9, "unit": "GB/s", "share": share}


def attention_row(attend: Callable, problem: Problem, implementation: str) -> dict[str, Any]:
    """Times a layer of attention, and compares attention's output and gradients with XLA's."""
    found, seconds = attend(problem, implementation)
    row = {"implementation": implementation, "shape": list(problem.shape), "hides": hides(problem)}
    row |= {"dtype": problem.dtype, "ms": 1e3 * seconds}
    return row | apart(found, lambda: attend(problem, "xla")[0])


def method_row(output: Callable, method: str, sizes: Sizes, rounds: int) -> dict[str, Any]:
    """Times a method of dispatch, and compares its output and gradient with einsum's."""
    found = dispatch_row(method, sizes.dispatch, dtype=sizes.dtype, rounds=rounds)
    row = {name: found[name] for name in ("method", "dtype", "ms", "tflops", "memory_gib")}
    return row | apart(output(method, sizes.dispatch), lambda: output("einsum", sizes.dispatch))


def apart(found: Sequence[jax.Array], reference: Callable[[], Sequence[jax.Array]]) -> dict:
    """Returns the largest difference from a reference; None where it is not finite or not known."""
    try:
        worst = max(map(difference, found, reference()))
    except Exception:  # the row of the reference says why
        return {"difference": None, "right": None}
    return {"difference": worst if math.isfinite(worst) else None, "right": worst < TOLERANCE}


def step_row(name: str, sizes: Sizes, rounds: int) -> dict[str, Any]:
    """Times the training step of a config with the largest batch that fits, as a run trains."""
    config, devices = load_config(name), jax.devices()
    info = data_info(config)
    memory = (devices[0].memory_stats() or {}).get("bytes_limit", 0)
    batch, failed = sizes.batch if memory >= LARGE else sizes.batch // 4, None
    candidate = candidate_for(config.model.attention, devices[0].platform)
    asked = candidate and config.model.attention.get("implementation") == AUTO
    while True:
        config.update_from_flattened_dict(fields_of(config, batch, len(devices)))
        try:
            attention, why = None, ""
            if asked:
                attention, why = chosen_by_measuring(config, info, devices, candidate)
            experiment = build_experiment(config, info, devices, attention=attention)
            row = train_step_row(name, experiment, rounds=rounds, steps=sizes.calls)
            del row["device"], row["devices"]  # of the whole report
            return row | {"attention": attention, "because": why}
        except (RunFailedError, BadInputError) as error:
            failed = failed or error
            if batch == 1 or isinstance(error, BadInputError):  # a model routes whole groups
                raise failed from None
        batch //= 2


def fields_of(config: ConfigDict, batch: int, devices: int) -> dict[str, int]:
    """Returns a config's fields for so many examples on each device."""
    fields = dict.fromkeys(("batch_size", "evaluation.batch_size"), batch * devices)
    if group := config.get("augment", {}).get("mixup_group_size"):
        fields["augment.mixup_group_size"] = min(group, batch)
    return fields


def slice_name(device_kind: str, devices: int) -> str | None:
    """Returns the slice that so many devices form, such as "v3-8"; None if they are no TPUs."""
    if not (chip := chip_of(device_kind)):
        return None
    return f"{chip.name}-{devices * chip.cores // chip.devices}"


def add_plans(report: Mapping[str, Any], plan: Callable[..., Any]) -> None:
    """Adds figures of a plan to each training step's row, or the reason why there is no plan."""
    tpu, devices = slice_name(report["device"], report["devices"]), report["devices"]

    def flags_of(row: Mapping[str, Any]) -> list[str]:
        fields = fields_of(load_config(row["config"]), row["batch_size"] // devices, devices)
        if row["attention"]:
            fields["model.attention.implementation"] = row["attention"]
        return [f"--config.{name}={value}" for name, value in fields.items()]

    def found(row: Mapping[str, Any], flags: list[str]) -> dict[str, Any] | str:
        if tpu is None:
            return f"{report['device']} is no TPU that plans know"
        answer = plan(row["config"], tpu, flags)
        fits = isinstance(answer, str) or answer["step_ms"] is not None
        return answer if fits else "the plan does not fit the memory"

    steps = report["steps"]
    flags = list(map(flags_of, steps))  # not in threads: Python may fail to parse files there
    with ThreadPoolExecutor() as pool:  # each plan is a process
        answers = list(pool.map(found, steps, flags))
    for row, answer in zip(steps, answers, strict=True):
        figures = {} if isinstance(answer, str) else answer
        row |= {key: figures.get(name) for key, name in PLANNED.items()}
        least, most = row["planned_ms"], row["planned_collective_ms"]
        row["planned_per_measured"] = least / row["step_ms"] if figures else None
        row["with_collectives"] = (least + most) / row["step_ms"] if figures else None
        row["no_plan"] = None if figures else answer


def write(report: Mapping[str, Any], out: Path) -> None:
    """Writes device.json and device.md, and of a finished report device.png."""
    write_json(out / "device.json", report)
    write_text(out / "device.md", page(report))
    if report["finished"]:
        draw(report, out / "device.png")


def page(report: Mapping[str, Any]) -> str:
    """Formats a report as Markdown."""
    packages, git = report["packages"].items(), report["git"]
    details = [report["date"], f"host {report['host']}", report["platform"], report["backend"]]
    details += [f"{name} {version}" for name, version in packages if version]
    if git:
        details.append(f"commit {git['commit'][:8]}" + " with changes" * git["changed"])
    lines = [
        f"# Device report: {report['devices']} x {report['device']}",
        "" if report["finished"] else "**Interrupted: what was measured by then.**",
        f"{', '.join(details)}. Measured in {report['seconds']:.0f} s. Differences are relative, "
        f"in the root mean square, and right below {TOLERANCE}.",
        "![times](device.png)" if report["finished"] else "",
    ]
    for kind, title in TITLES.items():
        rows = report[kind]
        names = [n for n in (rows or [{}])[0] if any(row.get(n) not in (None, "") for row in rows)]
        rows = [{name.replace("_", " "): row.get(name) for name in names} for row in rows]
        lines += [f"## {title}", table(rows)] if rows else []
    return "\n\n".join(filter(None, lines)) + "\n"


def draw(report: Mapping[str, Any], out: Path) -> None:
    """Draws the times as bars, and the plans' as crosses; PNG."""
    figure, axes = subplots(1, 3, size=(13, 3.5))
    rates = [f"{cell(row['rate'])} {row['unit']}" for row in report["peak"]]
    figure.suptitle(", ".join([f"{report['devices']} x {report['device']}", *rates]))
    for axis, kind in zip(axes, ("attention", "dispatch", "steps"), strict=True):
        key = "step_ms" if kind == "steps" else "ms"
        rows = [row for row in report[kind] if row[key]]
        times = [row[key] for row in rows]
        bars = axis.barh(range(len(rows)), times, color=PALETTE[4])
        axis.bar_label(bars, list(map(cell, times)), padding=3)
        planned = [row.get("planned_ms") or math.nan for row in rows]
        axis.plot(planned, range(len(rows)), "x", color=PALETTE[5], ms=9, mew=2)
        axis.set_yticks(range(len(rows)), list(map(label, rows)))
        axis.set_title(f"{kind}, ms" + " (x: planned)" * any(map(math.isfinite, planned)))
        axis.invert_yaxis()
        axis.margins(x=0.35)  # for the numbers beside the bars
    save(figure, out)


def label(row: Mapping[str, Any]) -> str:
    """Returns the name of a bar."""
    if "config" in row:
        return f"{row['config'].rpartition('/')[2]}\nbatch {row['batch_size']}"
    return (
        row.get("method") or f"{row['implementation']} {row['hides']}".strip() + f"\n{row['shape']}"
    )
