"""Exported models: the run's parameters and logits; damaged or foreign files are refused."""

import json

import jax
import numpy as np
import pytest
import safetensors.numpy
from etils import epath

from configs.variants import model_section
from widenet_jax.checkpoint.hashes import params_sha256
from widenet_jax.errors import BadInputError
from widenet_jax.inference.exported import read_exported, write_exported
from widenet_jax.inference.model_card import describe_model, listed
from widenet_jax.inference.trained import open_trained, read_model
from widenet_jax.trained import Trained


@pytest.fixture(params=["safetensors", "npz"])
def exported(request, digits_run, tmp_path) -> epath.Path:
    directory = epath.Path(tmp_path / "exported")
    write_exported(directory, read_model(str(digits_run)), file_format=request.param)
    return directory


def logits(trained: Trained) -> np.ndarray:
    images = jax.random.uniform(jax.random.key(0), (4, *trained.task.image_shape), minval=-1)
    apply = jax.jit(lambda p, x: trained.model.apply({"params": p}, {"image": x}, train=False)[0])
    return np.asarray(apply(trained.params, images))


def test_equal_logits(exported, digits_run):
    ours, theirs = open_trained(str(digits_run)), open_trained(str(exported))
    np.testing.assert_array_equal(logits(ours), logits(theirs))
    assert ours.class_names == theirs.class_names == tuple("0123456789")
    assert ours.config.to_dict() == theirs.config.to_dict()
    assert ours.step == theirs.step == 20


def test_the_hash_is_that_of_the_run(exported, digits_run):
    result = json.loads((digits_run / "result.json").read_text())
    found = read_exported(exported)
    assert params_sha256(found.params) == result["params_sha256"]
    assert found.result == result


def test_another_program_reads_the_file(exported):
    """safetensors or NumPy alone read the parameters by path."""
    if (exported / "params.npz").exists():
        arrays = dict(np.load(exported / "params.npz", allow_pickle=False))
    else:
        arrays = safetensors.numpy.load_file(exported / "params.safetensors")
    assert arrays["encoder/moe/experts/wi/kernel"].shape == (4, 32, 64)
    assert arrays["encoder/moe/experts/wi/kernel"].dtype == np.float32


def test_the_card_names_the_model_and_its_accuracy(exported, digits_run):
    card = (exported / "README.md").read_text()
    result = json.loads((digits_run / "result.json").read_text())
    assert "WideNet: 2 blocks of width 32, 4 heads, patches of 2 pixels, 2 of 4 experts" in card
    assert f"| test accuracy | {result['test_accuracy']:.2%} of 360 images |" in card
    assert "| length | 20 steps, batches of 64 |" in card
    assert result["params_sha256"] in card


def test_an_export_can_be_exported_again(exported, tmp_path):
    model = read_model(str(exported))
    write_exported(epath.Path(tmp_path / "again"), model, file_format="npz")
    assert params_sha256(read_exported(epath.Path(tmp_path / "again")).params) == params_sha256(
        model.params
    )


def test_changed_parameters_are_refused(exported):
    record = json.loads((exported / "export.json").read_text())
    path = exported / record["params_file"]
    data = bytearray(path.read_bytes())
    if path.suffix == ".safetensors":  # npz stores its own checksum
        data[-1] ^= 1
        path.write_bytes(bytes(data))
        with pytest.raises(BadInputError, match="the parameters differ from the exported ones"):
            read_exported(exported)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "has format_version 2, and this version of widenet_jax reads 1"),
        ({"params_file": "../elsewhere.npz"}, "params_file '../elsewhere.npz' is none of"),
    ],
)
def test_a_record_of_another_version_or_place(exported, change: dict, message: str):
    record = json.loads((exported / "export.json").read_text()) | change
    (exported / "export.json").write_text(json.dumps(record))
    with pytest.raises(BadInputError, match=message):
        read_exported(exported)


def test_a_missing_file_is_named(exported):
    (exported / "class_names.json").unlink()
    with pytest.raises(BadInputError, match=r"class_names.json: .*copy or export it again"):
        read_exported(exported)


def test_a_directory_with_files_is_left_alone(exported, digits_run):
    with pytest.raises(BadInputError, match="is not empty; name a new directory"):
        write_exported(exported, read_model(str(digits_run)), file_format="npz")


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ("vit_b", "ViT: 12 blocks of width 768, 12 heads, patches of 16 pixels, "
         "feed-forward of width 3072"),
        ("vit_moe_b", "ViT-MoE: 12 blocks of width 768, 12 heads, patches of 16 pixels, 2 of 4 "
         "experts of width 4096 for each token (blocks: every_6)"),
        ("vit_l,share=true", "Shared ViT: 24 blocks of width 1024, 16 heads, patches of 16 pixels, "
         "feed-forward of width 4096, all blocks share attention, feed-forward"),
    ],
)  # fmt: skip
def test_the_description_of_a_model(variant: str, said: str):
    assert describe_model(model_section(variant)) == said


def test_a_long_list_of_classes_is_cut():
    names = [f"c{i}" for i in range(23)]
    assert listed(names).endswith("c18, c19, and 3 more in `class_names.json`")
    assert listed(names[:2]) == "c0, c1"


def test_the_card_of_an_unfinished_run(digits_run, tmp_path):
    model = read_model(str(digits_run))
    unfinished = type(model)(model.params, model.config, model.info, model.step)
    write_exported(epath.Path(tmp_path / "e"), unfinished, file_format="npz")
    assert "not evaluated: the run has not finished" in (tmp_path / "e" / "README.md").read_text()
