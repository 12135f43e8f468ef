"""From pretraining to a finetuned model and to Hugging Face's files and back, with whole runs."""

import json
import shutil
from pathlib import Path

import jax
import pytest

from configs import defaults
from configs.variants import model_section
from widenet_jax import train
from widenet_jax.inference.pretrained_config import pretrained_sections
from widenet_jax.inference.trained import open_trained
from widenet_jax.main import parse_flags

SHORT = {
    "batch_size": 8,
    "duration": "2 steps",
    "evaluation.batch_size": 256,
    "tracking.tensorboard": False,
}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pretrains a small ALBERT on the embedded text."""
    workdir = tmp_path_factory.mktemp("text") / "albert"
    config = defaults.get_config(model_section("albert_tiny,depth=1"), "masked_lm")
    data = {"data.source": "tiny_text", "data.max_length": 32}
    config.update_from_flattened_dict(SHORT | data)
    train.run(config, str(workdir), devices=jax.devices()[:1])
    return workdir


@pytest.mark.slow
def test_finetuning_from_a_run(pretrained: Path, tmp_path: Path, capsys):
    """Its model and tokenizer are those of the run; the workdir then needs that run no longer."""
    for split in ("train", "dev"):
        rows = "sentence\tlabel\n" + "a good book\tyes\na dull book\tno\n" * 8
        (tmp_path / f"{split}.tsv").write_text(rows)
    model = shutil.copytree(pretrained, tmp_path / "model")
    fields = SHORT | {"init_from": model, "data.path": tmp_path, "data.max_length": 16}
    flags = [f"--config.{name}={value}" for name, value in fields.items()]
    place = f"--workdir={tmp_path / 'run'}"
    own, config = parse_flags(["main", "--config=configs/glue.py:own", place, *flags])
    train.run(config, own.workdir, devices=jax.devices()[:1])
    told = f"taken from {model}: embeddings, encoder, projection, pooler; new: classifier; "
    start, _, rest = capsys.readouterr().err.partition(f"{told}not used: mlm, order\n")
    assert "2 steps of 8 examples" in start and "kernel" not in rest  # after the long table
    trained = open_trained(own.workdir)
    assert trained.class_names == ("no", "yes") and trained.tokenizer.vocab_size == 2000
    assert trained.config.model.to_dict() == pretrained_sections(str(pretrained))["model"]

    shutil.rmtree(model)
    result = (tmp_path / "run" / "result.json").read_text()
    assert json.loads(result)["split"] == "dev"
    own, config = parse_flags(["main", "--config=configs/glue.py:own", place, *flags])
    train.run(config, own.workdir, devices=jax.devices()[:1])
    assert (tmp_path / "run" / "result.json").read_text() == result
