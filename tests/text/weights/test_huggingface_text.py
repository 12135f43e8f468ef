"""Hugging Face's BERT and ALBERT: their names, their function, and back out again."""

from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath
from inference import reference_bert as reference
from inference.our_bert import exported, our_outputs

from widenet_jax.errors import BadInputError
from widenet_jax.inference.exported import write_exported
from widenet_jax.inference.pretrained import finetune_params, load_pretrained
from widenet_jax.inference.pretrained_config import pretrained_sections
from widenet_jax.text.weights.huggingface import from_huggingface_text, to_huggingface_text
from widenet_jax.text.weights.huggingface_config import kind_out, model_section

KINDS = [("bert", 1), ("albert", 1), ("albert", reference.L)]


def imported(kind: str, arrays: dict, *, groups: int = 1) -> dict:
    shared = kind == "albert" and groups == 1
    return from_huggingface_text(arrays, kind=kind, depth=reference.L, shared=shared, source="hf")


def section_of(kind: str, **changes: object) -> dict:
    return model_section(reference.config_of(kind, **changes), source="config.json")


@pytest.mark.parametrize(
    ("kind", "groups", "hidden_act"),
    [("bert", 1, "gelu"), ("albert", 1, "gelu_new"), ("albert", reference.L, "relu")],
)
def test_the_function_is_theirs(kind: str, groups: int, hidden_act: str):
    """Hidden states and logits of real tokens; a large epsilon, so that it shows."""
    changes = {"groups": groups, "hidden_act": hidden_act, "layer_norm_eps": 0.05}
    arrays, config = (
        reference.random_arrays(kind, groups=groups),
        reference.config_of(kind, **changes),
    )
    params, section = imported(kind, arrays, groups=groups), section_of(kind, **changes)
    found = our_outputs(params, section, "pretraining")
    for row, n in enumerate(reference.LENGTHS):
        expected = reference.outputs(kind, arrays, config, row)
        np.testing.assert_allclose(found["hidden"][row, :n], expected["hidden"], atol=2e-5)
        np.testing.assert_allclose(found["mlm_logits"][row, :n], expected["mlm"], atol=2e-5)
        np.testing.assert_allclose(found["order_logits"][row], expected["order"], atol=2e-5)


@pytest.mark.slow
def test_classifier_and_span_head():
    arrays, config = reference.random_arrays("albert"), reference.config_of("albert")
    params, section = imported("albert", arrays), section_of("albert")
    classes = our_outputs(params, section, "classification")["logits"]
    span = our_outputs(params, section, "span")
    for row, n in enumerate(reference.LENGTHS):
        expected = reference.outputs("albert", arrays, config, row)
        np.testing.assert_allclose(classes[row], expected["classes"], atol=2e-5)
        for end, name in enumerate(("start_logits", "end_logits")):
            np.testing.assert_allclose(span[name][row, :n], expected["span"][:, end], atol=2e-5)


@pytest.mark.parametrize("kind", ["bert", "albert"])
def test_other_names_of_the_same_model(kind: str):
    """`gamma` and `beta`, no prefix, buffers of old files, and a second copy of the embedding."""
    arrays = reference.random_arrays(kind)
    expected = imported(kind, arrays)
    equal = lambda found: jax.tree.map(np.testing.assert_array_equal, found, expected)  # noqa: E731
    old = {
        name.removeprefix(f"{kind}.")
        .replace("LayerNorm.weight", "LayerNorm.gamma")
        .replace("LayerNorm.bias", "LayerNorm.beta"): array
        for name, array in arrays.items()
    }
    equal(imported(kind, old | {"embeddings.position_ids": np.arange(reference.P)[None]}))
    mlm, table = reference.HEADS[kind]["mlm"], f"{kind}.embeddings.word_embeddings.weight"
    copies = {f"{mlm}.decoder.weight": arrays[table], f"{mlm}.decoder.bias": arrays[f"{mlm}.bias"]}
    for only in ("both", table, f"{mlm}.bias"):  # the decoder's is the only copy
        equal(imported(kind, {k: v for k, v in (arrays | copies).items() if k != only}))
    # A decoder that is not the embedding: our head cannot hold it, so that all of the head is new.
    untied = imported(kind, arrays | {f"{mlm}.decoder.weight": arrays[table] + 1})
    new, note = finetune_params(expected, untied, model={"name": "text_encoder"}, source="hf")
    assert note.endswith("new: classifier, mlm, span; not used: classifier, mlm, span")
    np.testing.assert_array_equal(new["mlm"]["bias"], expected["mlm"]["bias"])
    inside = {k: v for k, v in arrays.items() if k.startswith(f"{kind}.") and "pooler" not in k}
    backbone = {"embeddings", "encoder"} | ({"projection"} if kind == "albert" else set())
    assert imported(kind, inside).keys() == backbone


def test_a_part_without_a_place_or_missing_is_named():
    arrays = reference.random_arrays("bert") | {"bert.encoder.layer.3.output.dense.bias": 1}
    message = "hf: encoder.layer.3.output.dense.bias has no place in a bert of 3 layers"
    with pytest.raises(BadInputError, match=message):
        imported("bert", arrays)
    arrays = reference.random_arrays("bert") | {"embeddings.LayerNorm.gamma": np.ones(1)}
    message = "hf: bert.embeddings.LayerNorm.weight and embeddings.LayerNorm.gamma are the same p"
    with pytest.raises(BadInputError, match=message):
        imported("bert", arrays)
    arrays = reference.random_arrays("albert")
    arrays["albert.embeddings.word_embeddings.weight"] = np.ones(reference.V)
    with pytest.raises(BadInputError, match=r"word_embeddings.weight has the shape \[13\], as in"):
        imported("albert", arrays)
    arrays = reference.random_arrays("albert")
    del arrays["albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.bias"]
    with pytest.raises(BadInputError, match=r"hf: encoder.albert_layer.*ffn.bias is missing"):
        imported("albert", arrays)


@pytest.mark.parametrize(("kind", "groups"), KINDS)
def test_back_out_again(kind: str, groups: int):
    arrays = reference.random_arrays(kind, groups=groups)
    params, section = imported(kind, arrays, groups=groups), section_of(kind, groups=groups)
    assert kind_out(section) == (kind, kind == "albert" and groups == 1)
    shared = kind_out(section)[1]
    again = to_huggingface_text(params, kind=kind, depth=reference.L, shared=shared)
    assert again.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)


def test_what_some_blocks_share_is_copied():
    """Shared attention and own feed-forwards: as many groups as blocks."""
    params = imported("albert", reference.random_arrays("albert", groups=3), groups=3)
    blocks = params["encoder"]
    blocks["attention"] = blocks["block_01_attention"]
    for i in range(reference.L):
        del blocks[f"block_{i:02d}_attention"]
    arrays = to_huggingface_text(params, kind="albert", depth=reference.L, shared=False)
    for i in range(reference.L):
        name = f"albert.{reference.LAYER['albert'].format(i)}.attention.query.weight"
        expected = blocks["attention"]["query"]["kernel"].T
        np.testing.assert_array_equal(arrays[name], expected)
    params["odd"] = {"kernel": np.ones((8, 1))}
    with pytest.raises(BadInputError, match="odd/kernel has no counterpart in their ALBERT"):
        to_huggingface_text(params, kind="albert", depth=reference.L, shared=False)


def of_transformers(cls: str, config: dict) -> tuple:
    """Makes a model of theirs with random weights; biases and norms are not 0 and 1."""
    torch = pytest.importorskip("torch", reason="pip install -e '.[huggingface]'")
    transformers = pytest.importorskip("transformers", reason="pip install -e '.[huggingface]'")
    torch.manual_seed(0)
    kind = cls.partition("For")[0].removesuffix("Model")
    settings = getattr(transformers, f"{kind}Config")(**config, initializer_range=0.3)
    model = getattr(transformers, cls)(settings).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name.lower():
                parameter += 0.3 * torch.randn_like(parameter)
    return torch, model


def their_outputs(torch, model) -> dict[str, np.ndarray]:
    """Returns the outputs of a model of theirs on the padded texts, and its hidden states."""
    mask = np.arange(reference.TOKENS.shape[1]) < np.asarray(reference.LENGTHS)[:, None]
    with torch.no_grad():
        found = model(
            input_ids=torch.from_numpy(reference.TOKENS).long(),
            token_type_ids=torch.from_numpy(reference.SEGMENTS.copy()).long(),
            attention_mask=torch.from_numpy(mask).long(),
            output_hidden_states=True,
        )
    named = {"hidden": found.hidden_states[-1]} | dict(found.items())
    return {k: v.numpy() for k, v in named.items() if not isinstance(v, tuple)}


@pytest.mark.filterwarnings("ignore")  # warnings of torch and transformers
@pytest.mark.parametrize(
    ("cls", "task", "head", "changes"),
    [
        ("BertForPreTraining", "masked_lm", "pretraining", {"hidden_act": "gelu"}),
        ("AlbertForPreTraining", "masked_lm", "pretraining", {"hidden_act": "gelu_new"}),
        ("AlbertForPreTraining", "masked_lm", "pretraining", {"groups": reference.L}),
        ("AlbertForSequenceClassification", "text_classification", "classification", {}),
        ("BertForQuestionAnswering", "span", "span", {}),
    ],
)
def test_equal_outputs_with_transformers(
    cls: str, task: str, head: str, changes: dict, tmp_path: Path
):
    """In from the files that `save_pretrained` writes; back out, their library opens ours."""
    kind = "bert" if cls.startswith("Bert") else "albert"
    labels = {"num_labels": reference.C} if head == "classification" else {}
    config = reference.config_of(kind, **changes) | labels
    torch, model = of_transformers(cls, config)
    theirs = their_outputs(torch, model)
    model.save_pretrained(tmp_path / "theirs")
    section = pretrained_sections(str(tmp_path / "theirs"))["model"] | {"dtype": "float32"}
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    params = load_pretrained(str(tmp_path / "theirs"), device, model=section, info={}).params
    ours = our_outputs(params, section, head)
    assert_equal_texts(ours, theirs)

    stored = exported(params, section, task, tmp_path)
    write_exported(epath.Path(tmp_path / "ours"), stored, file_format="huggingface", place="ours")
    transformers = pytest.importorskip("transformers")
    again = getattr(transformers, cls).from_pretrained(tmp_path / "ours").eval()
    assert_equal_texts(ours, their_outputs(torch, again))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    pair = tokenizer("a b", "c")
    assert pair["input_ids"] == [2, 5, 6, 3, 7, 3]
    assert pair["token_type_ids"] == [0, 0, 0, 0, 1, 1]
    if task == "text_classification":
        assert again.config.id2label[1] == "class 1"


def assert_equal_texts(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    """Compares hidden states and logits of real tokens, where both have them."""
    names = {"mlm_logits": "prediction_logits", "start_logits": "start_logits",
             "end_logits": "end_logits", "hidden": "hidden"}  # fmt: skip
    for name in names.keys() & ours.keys():
        for row, n in enumerate(reference.LENGTHS):
            expected = theirs[names[name]][row, :n]
            np.testing.assert_allclose(ours[name][row, :n], expected, atol=1e-4, err_msg=name)
    if "order_logits" in ours:
        order = theirs.get("sop_logits", theirs.get("seq_relationship_logits"))
        np.testing.assert_allclose(ours["order_logits"], order, atol=1e-4)
    if "logits" in ours:
        np.testing.assert_allclose(ours["logits"], theirs["logits"], atol=1e-4)
