"""Which checkpoint of a run is taken: the last, the best, or that of a step."""

import json
import os
import shutil
import sys
from functools import partial
from pathlib import Path

import cv2
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath
from etils.epath.testing import mock_epath
from refusals import answered, refused, refuses

import widenet_jax as wj
from widenet_jax.checkpoint.checkpoints import CHOICES, OF_LAST, load_checkpoint
from widenet_jax.checkpoint.manifest import params_sha256, write_manifest
from widenet_jax.cli import export, predict
from widenet_jax.errors import BadInputError, NoAccessError, RunFailedError
from widenet_jax.files import find_model
from widenet_jax.inference.pretrained import load_pretrained
from widenet_jax.inference.pretrained_config import pretrained_sections
from widenet_jax.inference.trained import open_trained, read_model

ONE_DEVICE = jax.sharding.SingleDeviceSharding(jax.devices()[0])


def as_best(checkpoint: Path) -> None:
    """Makes one of the newest checkpoints such as is kept as the best."""
    meta = checkpoint / "meta" / "metadata"
    fields = json.loads(meta.read_text())
    meta.write_text(json.dumps({name: fields[name] for name in fields if name != OF_LAST}))
    write_manifest(epath.Path(checkpoint))


@pytest.fixture(scope="module")
def run(digits_run, tmp_path_factory) -> Path:
    """Makes a run whose last checkpoint is that of step 20 and whose best is that of step 10."""
    place = Path(shutil.copytree(digits_run, tmp_path_factory.mktemp("runs") / "run"))
    shutil.rmtree(place / "best")
    (place / "best").mkdir()
    (place / "checkpoints" / "10").rename(place / "best" / "10")
    as_best(place / "best" / "10")
    return place


@pytest.mark.slow
def test_each_is_found(run: Path, digits_run: Path):
    """By an argument or by the end of the place; also of a run to start from."""
    hashes = {step: params_sha256(read_model(f"{digits_run}@{step}").params) for step in (10, 20)}
    assert hashes[10] != hashes[20]
    for which, step in {"last": 20, "20": 20, "best": 10}.items():
        found = open_trained(str(run), checkpoint=which)
        assert (found.step, params_sha256(found.params)) == (step, hashes[step]), which
        assert found.place == f"{run}@{which}"
    fields = pretrained_sections(f"{run}@best")["model"]
    taken = load_pretrained(f"{run}@best", ONE_DEVICE, model=fields, info={}).params
    assert params_sha256(taken) == hashes[10]
    last, best = (read_model(f"{digits_run}@{which}") for which in ("last", "best"))
    assert last.info == best.info and last.info.keys() == {"class_names"}  # without its metric
    assert best.result["test_accuracy"] == last.result["test_accuracy"]  # also of step 20


def test_commands_take_it(run: Path, tmp_path: Path, capsys):
    cv2.imwrite(str(tmp_path / "digit.png"), np.zeros((8, 8), np.uint8))
    flags = (f"--workdir={run}", "--checkpoint=best")
    words = {export.main: f"--out={tmp_path}/exported", predict.main: tmp_path / "digit.png"}
    for main, word in words.items():
        assert answered(capsys, main, word, *flags)["step"] == 10
    assert json.loads((tmp_path / "exported" / "export.json").read_text())["step"] == 10


def test_one_that_is_not_there(run: Path, digits_export: Path, capsys):
    """In Python, at the end of a place, and as a flag; an export has none."""
    absent = r"run has no checkpoint 15; it has 20, best \(step 10\)\. A run keeps the newest"
    refuses(absent, read_model, str(run), checkpoint="15")
    refuses("both name a checkpoint", read_model, f"{run}@last", checkpoint="best")
    for which in ("step_20", "", -1, 20.0, True):
        message = f"checkpoint={str(which)!r} must be last, best or a step"
        refuses(message, wj.load, run, checkpoint=which)
    for place, which, message in (
        (run, "1.5", "'1.5' must be last, best or a step"),
        (digits_export, "best", "is an export"),
        ("hf.safetensors", "best", "holds public"),
    ):
        flags = (f"--workdir={place}", f"--checkpoint={which}", "x.png")
        assert message in refused(capsys, predict.main, *flags)


@pytest.mark.parametrize(("which", "series"), [("20", "checkpoints"), ("best", "best")])
def test_no_other_takes_the_place_of_a_damaged_one(run: Path, tmp_path: Path, which, series):
    place = Path(shutil.copytree(run, tmp_path / "run"))
    next((place / series).glob("*/manifest.json")).write_text("{}")
    with pytest.raises(RunFailedError, match=f"{place}/{series} is not intact"):
        read_model(f"{place}@{which}")


def test_an_older_one_is_not_the_best(run: Path, tmp_path: Path):
    """A killed run may leave two; where the newer one is damaged, the older one is not taken."""
    best = Path(shutil.copytree(run / "best", tmp_path / "run" / "best"))
    shutil.copytree(run / "checkpoints" / "20", best / "20")
    as_best(best / "20")
    assert read_model(f"{tmp_path}/run@best").step == 20
    (best / "20" / "manifest.json").write_text("{}")
    with pytest.raises(RunFailedError, match=r"best is not intact \(20: "):
        read_model(f"{tmp_path}/run@best")


@pytest.mark.parametrize(("deleted", "read"), [(2, ["7", "8", "9", "9"]), (3, ["7", "8", "9"])])
def test_a_run_may_delete_the_best_while_it_is_read(
    tmp_path: Path, deleted: int, read: list[str], monkeypatch: pytest.MonkeyPatch
):
    """Here after its meta, before its parameters; a newer one is there by then."""
    golden = Path(__file__).parents[1] / "checkpoint" / "golden" / "version_1" / "checkpoints" / "7"
    best, restore, tried = tmp_path / "best", ocp.AsyncCheckpointer.restore, []
    shutil.copytree(golden, best / "7")

    def save(step: int):
        shutil.copytree(golden, best / str(step))
        meta = best / str(step) / "meta" / "metadata"
        meta.write_text(json.dumps(json.loads(meta.read_text()) | {"step": step}))
        write_manifest(epath.Path(best / str(step)))

    def train_on(self, path: Path, **how):
        tried.append(path.name)
        found = restore(self, path, **how)
        if len(tried) <= deleted:
            save(int(path.name) + 1)
            shutil.rmtree(path)
        return found

    monkeypatch.setattr(ocp.AsyncCheckpointer, "restore", train_on)
    load = partial(load_checkpoint, epath.Path(tmp_path), ONE_DEVICE, "best")
    if deleted < CHOICES:
        assert load().meta["step"] == 9
    else:
        with pytest.raises(RunFailedError, match="best/9 cannot be read"):
            load()
    assert tried == read


def test_a_directory_may_end_like_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert find_model("runs/mine@best") == ("runs/mine", "best")
    assert find_model("me@home/mine") == ("me@home/mine", "")
    os.mkdir(tmp_path / "mine@best")
    assert find_model(f"{tmp_path}/mine@best") == (f"{tmp_path}/mine@best", "")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    refuses("gs://b/mine@120 needs the gcsfs package: pip inst", wj.load, "gs://b/mine@120")
    monkeypatch.undo()
    with mock_epath(exists=lambda _, path: path == "gs://b/export@120"):
        assert find_model("gs://b/export@120") == ("gs://b/export@120", "")
        assert find_model("gs://b/mine@120") == ("gs://b/mine", "120")


def test_of_a_bucket_only_errors_of_access_are_the_users():
    refused = NoAccessError(401, "Anonymous caller has no access; log in with", "gs://b")
    told = "cannot be read: gs://b: Anonymous caller has no access; log in with"
    cases = (
        ("isdir", refused, BadInputError, f"^gs://b/mine {told}"),
        ("open", refused, BadInputError, f"^gs://b/m.npz {told}"),
        ("isdir", KeyError("mlm"), KeyError, "^'mlm'$"),
        ("isdir", RunFailedError("nothing is intact"), RunFailedError, "^nothing is intact$"),
    )
    for call, error, kind, told in cases:

        def broken(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        with mock_epath(**{call: broken}), pytest.raises(kind, match=told):
            wj.load("gs://b/m.npz" if call == "open" else "gs://b/mine")
