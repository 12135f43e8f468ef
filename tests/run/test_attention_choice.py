"""`implementation: auto`: a run asks the device once. Here a CPU stands for a TPU.

It interprets the kernel, which is slow: only a run that begins with pallas goes on with it.
"""

import json
import shutil
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec
from small_runs import small_config

from widenet_jax import train
from widenet_jax.errors import BadInputError
from widenet_jax.nn.attention import implementations, pallas, relative_pallas
from widenet_jax.nn.attention.implementations import CANDIDATES, candidate_for
from widenet_jax.ops.plan import compile as planning
from widenet_jax.ops.plan.hlo import parse
from widenet_jax.ops.plan.planner import data_info
from widenet_jax.ops.plan.topology import parse_topology
from widenet_jax.run import kernel_trial
from widenet_jax.run.attention import agreed, attention_of
from widenet_jax.run.kernel_trial import (
    Problem,
    compare,
    faster,
    layer_arrays,
    layer_of,
    problem_of,
    verdict,
    with_gradients,
)
from widenet_jax.run.workdir import environment
from widenet_jax.sharding import build_mesh


@pytest.fixture(autouse=True)
def a_device_with_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CANDIDATES, "cpu", "pallas")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("ROUNDS", "CALLS"):  # no test asserts a measured time
        monkeypatch.setattr(kernel_trial, name, 1)


def train_digits(workdir: Path, steps: int, capsys: pytest.CaptureFixture, **fields) -> list[str]:
    """Trains a model with two heads of 64; returns the lines on its attention."""
    config = small_config(duration=f"{steps} steps", **fields)
    config.model.attention.update(num_heads=2, head_dim=64)
    train.run(config, str(workdir))
    return [line for line in capsys.readouterr().err.splitlines() if "attention: " in line]


def used(workdir: Path) -> list[str]:
    """Returns the implementation of each start."""
    return [start["attention"] for start in json.loads((workdir / "environment.json").read_text())]


PROBLEM = Problem((2, 16, 2, 64), "float32", True, False)


def test_a_kernel_that_is_right_is_judged_by_its_time():
    """Twice as fast, or half; of a run that had it before the time does not count."""
    (name, line), lasting = compare(PROBLEM, "pallas", by_time=False)
    assert (name, lasting) == ("pallas", True) and line.endswith("[2, 16, 2, 64] float32")
    exact = [np.eye(4)]

    def judged(seconds: float, **how: bool) -> tuple[str, str]:
        return verdict((exact, 1.0), (exact, seconds), "pallas", "x", **{"by_time": True} | how)

    line = "a layer with pallas takes {} times as long as with xla, x"
    assert judged(0.5) == ("pallas", f"attention: pallas; {line.format('0.50')}")
    assert judged(2.0) == ("xla", f"attention: xla; {line.format('2.00')}")
    assert judged(0.98)[0] == "xla"  # less than 3%
    assert judged(2.0, by_time=False)[0] == "pallas"


def test_how_far_a_kernel_may_be_off():
    """0.04 and 0.06 everywhere; 0.4 and 0.6 in one row of 64, 0.05 and 0.075 over all."""
    exact = np.ones((64, 4))

    def judged(found: np.ndarray) -> tuple[str, str]:
        return verdict(([exact], 2.0), ([found], 1.0), "pallas", "x", by_time=True)

    assert judged(exact * 1.04)[0] == "pallas"
    assert judged(exact * 1.06) == (
        "xla",
        "attention: xla; pallas is wrong here, by 6% in the output",
    )
    one = np.zeros((64, 4))
    one[7] = 1
    assert judged(exact + 0.39 * one)[0] == "pallas"
    exact = np.ones((1024, 4))
    one = np.zeros((1024, 4))
    one[7] = 1
    found = verdict(([exact], 2.0), ([exact + 0.6 * one], 1.0), "pallas", "x", by_time=True)
    assert found == ("xla", "attention: xla; pallas is wrong here, by 60% in a row of the output")


@pytest.mark.slow
def test_a_mask_that_is_off_by_one_key_is_wrong(monkeypatch):
    right = pallas.hidden_keys
    shifted = lambda mask, ids: right(jnp.roll(mask, 1, axis=1).at[:, 0].set(True), ids)  # noqa: E731
    problem = PROBLEM._replace(shape=(1, 512, 2, 64))
    assert compare(problem, "pallas", by_time=False)[0][0] == "pallas"
    monkeypatch.setattr(pallas, "hidden_keys", shifted)
    (name, line), _ = compare(problem, "pallas", by_time=False)
    assert name == "xla" and "pallas is wrong here, by " in line and " in a row of " in line


def test_one_mask_for_all_examples_is_wrong(monkeypatch):
    """Each example of the problem hides other keys, by its mask and by its segments."""
    right = pallas.hidden_keys

    def of_the_first(mask, ids):
        return right(*(x if x is None else jnp.broadcast_to(x[:1], x.shape) for x in (mask, ids)))

    monkeypatch.setattr(pallas, "hidden_keys", of_the_first)
    for problem in (PROBLEM, PROBLEM._replace(mask=False, segment_ids=True)):
        assert "pallas is wrong here" in compare(problem, "pallas")[0][1]


@pytest.mark.slow
def test_a_kernel_that_is_wrong_is_not_used(tmp_path, monkeypatch, capsys):
    """With one sign flipped, the output is off by more than its own size: the run takes xla."""
    right = pallas.per_head
    monkeypatch.setattr(pallas, "per_head", lambda x, settings: [-y for y in right(x, settings)])
    [line] = train_digits(tmp_path / "run", 2, capsys)
    assert "attention: xla; pallas is wrong here, by " in line
    assert used(tmp_path / "run") == ["xla"] and (tmp_path / "run" / "result.json").exists()


def test_a_kernel_that_does_not_run(monkeypatch):
    """It is kept, except where memory was short."""
    (name, line), lasting = compare(PROBLEM._replace(shape=(2, 16, 3, 64)), "pallas")
    assert (name, lasting) == ("xla", True)
    assert "pallas does not run here on [2, 16, 3, 64] float32: " in line

    def too_large(*_, **__):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 GiB")

    monkeypatch.setattr(pallas, "kernel_attend", too_large)
    assert compare(PROBLEM, "pallas") == (
        (
            "xla",
            "attention: xla; pallas does not run here on [2, 16, 2, 64] float32: "
            "RESOURCE_EXHAUSTED: 9 GiB",
        ),
        False,
    )


def test_relative_attention_is_measured_with_its_memory():
    """Not where the kernel lacks the evaluation's memory; cuDNN has no relative attention."""
    problem = PROBLEM._replace(shape=(1, 128, 2, 64), memory=128, waves=8, eval_memory=4096)
    (name, line), _ = compare(problem, "pallas")
    assert (name, line[:56]) == ("xla", "attention: xla; pallas does not take a memory of 4096, [")
    assert candidate_for({"name": "relative"}, "gpu") is None
    assert candidate_for({"name": "full"}, "gpu") == "cudnn"


@pytest.mark.slow
def test_relative_attention_is_right_and_judged_by_its_time(monkeypatch):
    problem = PROBLEM._replace(shape=(2, 128, 2, 64), memory=128, waves=8, eval_memory=512)
    (name, line), _ = compare(problem, "pallas")
    assert name in ("xla", "pallas") and line.endswith("[2, 128, 2, 64] float32, memory 128")
    assert "wrong" not in line and "does not" not in line
    right = relative_pallas.centred  # of the gradient of the queries' terms alone
    monkeypatch.setattr(relative_pallas, "centred", lambda x, axis: -right(x, axis=axis))
    (_, line), _ = compare(problem, "pallas")
    assert "pallas is wrong here, by 200% in the gradient of the queries' terms" in line


@pytest.mark.slow
def test_a_language_model_without_memory_is_measured_as_it_runs(monkeypatch):
    """A kernel that shows later tokens is wrong there."""
    config = small_config(run="switch_head", batch_size=4)
    problem = problem_of(config, data_info(config), 2)
    assert problem == Problem((2, 32, 4, 24), "float32", False, False, causal=True)
    problem = problem._replace(shape=PROBLEM.shape)
    assert "wrong" not in compare(problem, "pallas")[0][1]
    monkeypatch.setattr(pallas, "later_hidden", lambda scores, block: scores)
    assert "pallas is wrong here" in compare(problem, "pallas")[0][1]


def test_the_answer_is_kept(tmp_path: Path, monkeypatch):
    """A damaged one is found again; other flags of the compiler have their own."""
    [device, *_] = jax.devices()
    name, line = faster(PROBLEM, "pallas", device, by_time=False)
    works = pallas.kernel_attend
    monkeypatch.setattr(pallas, "kernel_attend", None)  # would fail
    [file] = (tmp_path / "cache").rglob("*.json")
    again = faster(PROBLEM, "pallas", device, by_time=False)
    assert again == (name, f"{line}; kept in {file}")
    for text in ("[1", '["pallas"]', '["rope", "a line"]', "3"):
        file.write_text(text)
        _, line = faster(PROBLEM, "pallas", device, by_time=False)
        assert line.startswith("attention: xla; pallas does not run here")
        assert json.loads(file.read_text()) == ["xla", line]
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_some_flag=true")
    monkeypatch.setattr(pallas, "kernel_attend", works)
    assert faster(PROBLEM, "pallas", device, by_time=False)[0] == "pallas"


def test_xla_that_does_not_run_leaves_the_kernel(monkeypatch):
    monkeypatch.setitem(implementations.IMPLEMENTATIONS, "xla", None)
    (name, line), lasting = compare(PROBLEM, "pallas")
    assert (name, lasting) == ("pallas", False)
    assert line.startswith("attention: pallas, unchecked; xla does not run here on [2, 16, 2, 64]")


def test_a_cache_that_cannot_be_written_stops_no_run(tmp_path: Path, monkeypatch):
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert faster(PROBLEM, "pallas", jax.devices()[0], by_time=False)[0] == "pallas"


def test_a_kernel_is_checked_again_where_the_device_or_versions_changed(tmp_path, monkeypatch):
    """Its time is not asked for, and a wrong one is left."""
    config = small_config(batch_size=2)
    config.model.attention.update(num_heads=2, head_dim=64)
    before = environment() | {"attention": "pallas"}
    before["packages"] = before["packages"] | {"jaxlib": "0.1"}
    workdir = epath.Path(tmp_path)
    (workdir / "config.json").write_text("{}")
    (workdir / "checkpoints" / "2").mkdir(parents=True)
    (workdir / "environment.json").write_text(json.dumps([before]))
    ask = partial(attention_of, config, data_info(config), jax.devices()[:1], workdir)
    assert ask() == ("pallas", "")
    right = pallas.per_head
    monkeypatch.setattr(pallas, "per_head", lambda x, settings: [-y for y in right(x, settings)])
    shutil.rmtree(tmp_path / "cache")
    used, line = ask()
    assert used == "xla" and "wrong here" in line and "; pallas until now" in line


def test_one_host_decides_for_all():
    """Where process 1 of 3 finds the kernel wrong, or slow, none takes it."""
    ask = partial(agreed, candidate="pallas", line="its own line")
    assert ask(np.array([True, True, True])) == ("pallas", "its own line")
    assert ask(np.array([False, False, False])) == ("xla", "its own line")
    line = "attention: xla, the choice of process 1; here its own line"
    assert ask(np.array([True, False, True])) == ("xla", line)
    quiet = agreed(np.array([True, False, True]), "pallas", "")  # a resumed run's
    assert quiet[1] == "attention: xla, the choice of process 1; here pallas is right"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v4-8", "v5e-4"])
def test_the_layer_that_is_timed_has_no_copies(monkeypatch, name: str):
    """Its projections write what the kernel reads, and the reverse."""
    pytest.importorskip("libtpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # libtpu aborts on a flag that it does not know
    problem = Problem((16, 512, 12, 64), "bfloat16", True, False)
    mesh = build_mesh({"fsdp": 1, "expert": 1}, planning.tpu_devices(parse_topology(name))[:1])
    place = NamedSharding(mesh, PartitionSpec())

    def arrays() -> tuple:
        operands, seen = problem.arrays()
        return seen, *layer_arrays(*operands)

    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), jax.eval_shape(arrays)
    )
    with jax.set_mesh(mesh):
        layer = jax.jit(with_gradients(problem, layer_of(problem, "pallas")))
        module = parse(planning.compile_lowered(layer.lower(*shapes)).hlo)
    made = [i for part in module.computations.values() for i in part.values()]
    size = 16 * 512 * 768 * 2 // 4  # far below an activation, above the parameters
    assert not [i for i in made if i.opcode in ("copy", "transpose") and size <= i.num_bytes]


CUDNN = {
    "nothing": {}, "mask": {"mask": (2, 512)}, "segments": {"segment_ids": (2, 512)},
    "both": {"mask": (2, 512), "segment_ids": (2, 512)}, "causal": {"causal": True},
    "causal and mask": {"causal": True, "mask": (2, 512)},
}  # fmt: skip


@pytest.mark.parametrize("name", CUDNN)
def test_cudnn_takes_what_models_give_it(name: str, monkeypatch):
    """As far as tracing goes: its arrays have the shapes that cuDNN's kernel needs."""
    cudnn = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda *_: 91_000)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda *_: True)
    monkeypatch.setattr(cudnn, "is_cuda_compute_capability_equal", lambda *_: False)
    monkeypatch.setattr(implementations, "platform", lambda: "gpu")
    dtypes = {"mask": bool, "segment_ids": jnp.int32}
    seen = {k: jnp.ones(v, dtypes[k]) if k in dtypes else v for k, v in CUDNN[name].items()}
    query = jnp.zeros((2, 512, 12, 64), jnp.bfloat16)
    run = lambda q: implementations.attend(q, q, q, implementation="cudnn", **seen)  # noqa: E731
    for q in (query, query[:, 1:]):
        seen = {k: v[:, -q.shape[1] :] if k in dtypes else v for k, v in seen.items()}
        assert jax.eval_shape(lambda q: jax.vjp(run, q)[1](q)[0], q).shape == q.shape
    with pytest.raises(BadInputError, match=r"cudnn: The head dim .* got 20; use auto"):
        jax.eval_shape(run, query[:, 1:, :, :20])


@pytest.mark.parametrize(
    ("name", "queries"),
    [*((name, 13) for name in CUDNN), ("nothing", 4), ("nothing", 1), ("mask", 4), ("mask", 5)],
)
def test_the_row_that_makes_tokens_even_changes_nothing(name: str, queries: int, monkeypatch):
    """With JAX's own products in place of the kernel, which runs on GPUs alone."""
    plain = jax.nn.dot_product_attention
    even = []

    def products(query, *rest, implementation: str, **how):
        assert implementation == "cudnn"
        even.extend(x.shape[1] % 2 == 0 for x in (query, rest[0]))
        return plain(query, *rest, implementation="xla", **how)

    monkeypatch.setattr(jax.nn, "dot_product_attention", products)
    monkeypatch.setattr(implementations, "platform", lambda: "gpu")
    q, k, v, d_out = jax.random.normal(jax.random.key(0), (4, 2, 13, 3, 8)).astype(jnp.float16)
    seen = {"causal": "causal" in name}
    if "mask" in name or name == "both":
        seen["mask"] = jnp.arange(13) < jnp.array([[13], [9]])
    if name in ("segments", "both"):
        seen["segment_ids"] = jnp.arange(13)[None] // jnp.array([[4], [7]])
    found, expected = (
        jax.vjp(partial(implementations.attend, implementation=of, **seen), q[:, :queries], k, v)
        for of in ("cudnn", "xla")
    )
    arrays = ((out, *pull(d_out[:, :queries])) for out, pull in (found, expected))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=0.02, atol=0.02), *arrays)
    assert even == [True, True]


@pytest.mark.slow
def test_a_change_is_said(tmp_path, capsys):
    fields = {"model.attention.implementation": "pallas"}
    assert train_digits(tmp_path / "run", 2, capsys, **fields) == []
    assert train_digits(tmp_path / "run", 3, capsys) == []  # auto keeps it and does not ask
    [line] = train_digits(tmp_path / "run", 4, capsys, **{"model.attention.implementation": "xla"})
    assert line.endswith(
        "attention: xla; pallas until now: from here on "
        "numbers differ from an unbroken run's by rounding"
    )
    assert used(tmp_path / "run") == ["pallas", "pallas", "xla"]
