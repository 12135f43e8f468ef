"""--profile: the files hold the steps, in the formats of XProf and Perfetto."""

import gzip
import json
import re
from contextlib import nullcontext
from importlib.metadata import requires
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from small_runs import small_config, train_here

from widenet_jax.errors import BadInputError
from widenet_jax.run.profile import Profile, check_profiler


@jax.jit
def train_step(state: jax.Array, batch: jax.Array) -> tuple[jax.Array, dict]:
    return state + batch @ batch, {"loss": state.sum()}


def profile_calls(workdir: Path, *, steps: int, calls: int) -> list[str]:
    """Calls the step above, as a run does that resumes after step 10; returns what was noted."""
    notes: list[str] = []
    profile = Profile(
        train_step,
        steps=steps,
        start_step=10,
        workdir=epath.Path(workdir),
        note=notes.append,
        pause=nullcontext,
    )
    state = jnp.zeros((4, 4))
    for _ in range(calls):
        state, _ = profile(state, jnp.ones((4, 4)))
    profile.close()
    np.testing.assert_array_equal(state, np.full((4, 4), 4.0 * calls))
    return notes


def steps_in_xplane(folder: Path) -> list[int]:
    """Returns the numbers of the steps in the file that XProf reads."""
    (file,) = folder.glob("*.xplane.pb")
    events = [
        dict(event.stats)
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes
        for line in plane.lines
        for event in line.events
        if event.name == "train"
    ]
    return sorted(int(stats["step_num"]) for stats in events)


def steps_in_perfetto(folder: Path) -> list[int]:
    """Returns the numbers of the steps in the file for Perfetto: Chrome's JSON format, zipped."""
    (file,) = folder.glob("*.perfetto.json.gz")
    trace = json.loads(gzip.decompress(file.read_bytes()))
    assert "metadata" not in trace  # Perfetto refuses it
    complete = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    assert all({"name", "ts", "dur", "pid", "tid"} <= set(event) for event in complete)
    return sorted(int(e["args"]["step_num"]) for e in complete if e["name"] == "train")


@pytest.mark.parametrize(
    ("steps", "calls", "traced"),
    [
        (2, 9, [14, 15]),  # steps 11 to 13 settle
        (100, 5, [14, 15]),  # the run ended before the trace
    ],
)
def test_a_trace_holds_its_steps_and_no_others(
    tmp_path: Path, steps: int, calls: int, traced: list[int]
):
    notes = profile_calls(tmp_path, steps=steps, calls=calls)
    folder = tmp_path / "profile" / "plugins" / "profile" / "step_00000014"
    assert steps_in_xplane(folder) == steps_in_perfetto(folder) == traced
    assert notes == [f"profile of steps 14 to 15: {folder}"]


def test_a_run_too_short_to_trace_says_so(tmp_path: Path):
    notes = profile_calls(tmp_path, steps=2, calls=3)
    assert notes == ["--profile: this start ended before step 14, no step was traced"]
    assert not (tmp_path / "profile").exists()


@pytest.mark.slow
def test_a_run_with_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture):
    train_here(small_config(duration="6 steps"), tmp_path, profile=2)
    folder = tmp_path / "profile" / "plugins" / "profile" / "step_00000004"
    assert f"profile of steps 4 to 5: {folder}" in capsys.readouterr().err
    assert steps_in_xplane(folder) == steps_in_perfetto(folder) == [4, 5]
    times = [json.loads(line) for line in (tmp_path / "timing.jsonl").read_text().splitlines()]
    assert [line["step"] for line in times] == [2, 3, 4, 5, 6]  # the first step compiles
    for line in times:
        assert line["seconds_per_step"] * line["images_per_second"] == pytest.approx(64, rel=1e-6)


def test_a_libtpu_in_which_the_profiler_would_crash_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """`jax[tpu]` names the version that fits; JAX does not load libtpu where it may not use it."""
    (fits,) = re.findall(r"libtpu==([\d.]+)\.\*", " ".join(requires("jax")))
    before = jax.config.jax_platforms
    for installed in (f"{fits}.1", f"{fits}1"):
        place = tmp_path / installed / f"libtpu-{installed}.dist-info"
        place.mkdir(parents=True)
        about = f"Metadata-Version: 2.1\nName: libtpu\nVersion: {installed}\n"
        (place / "METADATA").write_text(about)
        monkeypatch.syspath_prepend(tmp_path / installed)
        check_profiler()  # on a CPU
        jax.config.update("jax_platforms", "")
        try:
            if installed == f"{fits}.1":
                check_profiler()
                continue
            with pytest.raises(BadInputError, match=f"libtpu {fits}, and {installed}"):
                check_profiler()
        finally:
            jax.config.update("jax_platforms", before)
