"""The tasks on texts and the text encoder, as `specs` describes them."""

from dataclasses import replace

from widenet_jax import specs

ANSWER = {"span": specs.Part(specs.NEVER)}
POOLER = {"pooler": specs.Part(specs.WHERE_IT_FITS, head=False)}
TEXTS = "Texts have at most {max_length} tokens of `tokenizer.json`, [CLS] and [SEP] among them."
ALBERT = {"vocab_size": 30_000}


def head(name: str, parts: dict[str, specs.Part]) -> dict[str, specs.HeadSpec]:
    """Returns a function of `text.heads` with the one that counts its FLOPs, by its name."""
    place = f"widenet_jax.text.heads:{name}"
    return {name: specs.HeadSpec(place, f"{place}_flops", parts)}


MASKED_LM = specs.TaskSpec(
    name="masked_lm",
    task="widenet_jax.text.masked_lm:MaskedLm",
    model="text_encoder",
    sections={
        "task": {
            "mask_fraction": (0.15, "of a sequence's tokens, special ones included", 0.0, 1.0),
            "max_predictions": (0, "predictions per sequence; 0: mask_fraction of max_length", 0),
            "max_ngram": (3, "words masked together; 1: single words", 1, 100),
        },
        "data": {
            "source": ("text", "text; tiny_text: an embedded novel, with data.path empty"),
            "path": ("", "a set of prepare_data.py text, local or gs://"),
            "train_split": ("train", "its name in the set"),
            "eval_split": ("valid", "its name in the set"),
            "max_length": (512, "T, tokens of a sequence", 5, 2**16),
        },
    },
    transforms="widenet_jax.text.data.instances:instance_transforms",
    example="widenet_jax.text.data.instances:instance_spec",
    info=("vocab_size",),
    sources={
        "text": specs.SourceSpec("widenet_jax.text.data.text_records:TextRecords"),
        "tiny_text": specs.SourceSpec(
            "widenet_jax.text.data.text_records:TinyText",
            reads="the embedded novel",
            instead="text for a set that scripts/prepare_data.py text wrote",
        ),
    },
    sizes=("num_examples", "vocab_size"),
    sets={
        "wikipedia_books": (10_240_000, 30_000),  # 50 epochs: the paper's 125,000 steps of 4096
        "wikipedia_s": (75_000, 8_000),
        "tiny_text": (1_556, 2_000),
    },
    heads=head(
        "pretraining", POOLER | dict.fromkeys(("mlm", "order"), specs.Part(specs.WHERE_IT_FITS))
    ),
    predict=specs.PredictSpec(
        form='--fill="A [MASK] word"',
        flags={
            "--fill": specs.Flag("a text with one or more [MASK]; may be repeated", kind="texts")
        },
        run="widenet_jax.text.predict:predict_words",
    ),
    methods={"fill": "widenet_jax.text.predict:fill_masks"},
    card=specs.CardSpec(
        purpose="predicting masked words and the order of sentences",
        pipeline="fill-mask",
        commands=(
            'python scripts/predict.py --workdir=DIR --fill="A word is [MASK] here."',
            "python -m widenet_jax.main --config=configs/glue.py:own --workdir=RUN "
            "--config.init_from=DIR",
        ),
        inputs=TEXTS,
    ),
    preview="widenet_jax.text.prepare.preview:print_instances",
)

TEXT_CLASSIFICATION = specs.TaskSpec(
    name="text_classification",
    task="widenet_jax.text.classification:TextClassification",
    model="text_encoder",
    sections={
        "task": {},
        "data": {
            "source": ("table", "table: texts and labels"),
            "path": ("", "a directory of splits, train.tsv, dev.tsv, ..., or one file"),
            "tokenizer": ("", 'a tokenizer.json, vocab.txt or .model; "": init_from has one'),
            "train_split": ("train", "the name of its file, without the ending"),
            "eval_split": ("dev", "as train_split"),
            "max_length": (512, "T, tokens of a sequence", 5, 2**20),
            "text_column": ("", '"": the usual names (GLUE, Hugging Face, TFDS)'),
            "pair_column": ("", 'second texts; "": the usual names, or none'),
            "label_column": ("", '"": the usual names'),
            "label_names": ("", 'of labels 0, 1, ...: "negative,positive"; "": as in the file'),
        },
    },
    transforms="widenet_jax.text.data.tables:row_transforms",
    example="widenet_jax.text.data.tables:example_of",
    info=("class_names", "vocab_size"),
    sources={"table": specs.SourceSpec("widenet_jax.text.data.tables:Table", reads_slices=True)},
    sizes=("num_examples", "num_classes"),
    sets={"SST-2": (67_349, 2), "MNLI": (392_702, 3)},
    usual=ALBERT,
    last_layer="classifier",
    splits_of="widenet_jax.text.data.tables:splits_of",
    heads=head("classification", POOLER | {"classifier": specs.Part(specs.SAME_CLASSES)}),
    predict=specs.PredictSpec(
        form="--text=TEXT or files of texts",
        flags={
            "--text": specs.Flag("to classify or score; may be repeated", kind="texts"),
            "--pair": specs.Flag("the second text of a --text", kind="texts"),
            "files": specs.Flag("tables of texts, or .txt with a text a line", "FILE", "words"),
            "--text_column": specs.Flag("of tables; by default as in the run", "NAME"),
            "--pair_column": specs.Flag("of their second texts, likewise", "NAME"),
            "--out": specs.Flag("write the predictions to a .csv or .jsonl file", "FILE"),
        },
        run="widenet_jax.text.predict:predict_classes",
        instead=("files",),
    ),
    methods=dict.fromkeys(("predict", "features"), "widenet_jax.text.predict:rows_of"),
    card=specs.CardSpec(
        purpose="classifying texts",
        pipeline="text-classification",
        commands=(
            'python scripts/predict.py --workdir=DIR --text="A text."',
            "python scripts/evaluate.py --workdir=DIR --config.data.path=TABLES",
        ),
        inputs=TEXTS,
        arrays="`tokens` are ids of `tokenizer.json`, [CLS] and [SEP] among them, padded with "
        "zeros. `token_types` are 1 at the tokens of a second text. `length` counts the tokens.",
    ),
)

COLUMNS = dict(TEXT_CLASSIFICATION.sections["data"], source=("scores", "scores: texts and numbers"))
TEXT_REGRESSION = replace(
    TEXT_CLASSIFICATION,
    name="text_regression",
    task="widenet_jax.text.regression:TextRegression",
    sections={"task": {}, "data": {k: v for k, v in COLUMNS.items() if k != "label_names"}},
    transforms="widenet_jax.text.data.sequences:sequence_transforms",
    example="widenet_jax.text.data.scores:example_of",
    info=("vocab_size",),
    sources={"scores": specs.SourceSpec("widenet_jax.text.data.scores:Scores", reads_slices=True)},
    sizes=("num_examples",),
    sets={"STS-B": (5_749,)},
    last_layer="",
    splits_of="widenet_jax.text.data.scores:splits_of",
    predict=replace(TEXT_CLASSIFICATION.predict, run="widenet_jax.text.predict:predict_scores"),
    methods={"score": "widenet_jax.text.predict:rows_of"},
    card=replace(TEXT_CLASSIFICATION.card, purpose="scoring texts"),
)

SPAN = specs.TaskSpec(
    name="span",
    task="widenet_jax.text.span:Span",
    model="text_encoder",
    sections={
        "task": {
            "head": ("beam", "beam: ALBERT's; span: BERT's"),
            "unanswerable": (False, "whether some questions have no answer (SQuAD2.0)"),
            "max_answer_length": (30, "tokens", 1, 2**10),
            "null_threshold": (0.0, "no answer where the null score is above", -1e9),
        },
        "data": {
            "source": ("squad", "squad: questions on paragraphs"),
            "path": ("", "a directory of splits in the official JSON or as parquet"),
            "tokenizer": ("", 'a tokenizer.json, vocab.txt or .model; "": init_from has one'),
            "train_split": ("train", "the name of its file, without the ending"),
            "eval_split": ("dev", "as train_split"),
            "max_length": (384, "T, tokens of a window", 1, 2**20),
            "max_question_length": (64, "tokens", 1, 2**20),
            "stride": (128, "tokens between the starts of two windows", 1, 2**20),
        },
    },
    transforms="widenet_jax.text.data.sequences:sequence_transforms",
    example="widenet_jax.text.data.squad:example_of",
    info=("vocab_size",),
    sources={"squad": specs.SourceSpec("widenet_jax.text.data.squad:Squad", reads_slices=True)},
    sets={"train-v1.1": (88_600,), "train-v2.0": (131_000,)},  # windows of 384 and 512 tokens
    usual=ALBERT,
    heads=head("span", ANSWER) | head("span_beam", ANSWER),
    predict=specs.PredictSpec(
        form="--question=TEXT --context=TEXT",
        flags={
            "--question": specs.Flag("to answer from --context"),
            "--context": specs.Flag("holds the answer, maybe"),
        },
        run="widenet_jax.text.predict:predict_answer",
    ),
    methods={"answer": "widenet_jax.text.predict:answer_question"},
    card=specs.CardSpec(
        purpose="answering questions by a span of a text",
        pipeline="question-answering",
        commands=(
            'python scripts/predict.py --workdir=DIR --question="Who?" --context="A text."',
            "python scripts/evaluate.py --workdir=DIR --config.data.path=SQUAD",
        ),
        inputs=TEXTS,
    ),
    answers="widenet_jax.text.span:answer_files",
)

TEXT_ENCODER = specs.ModelSpec(
    name="text_encoder",
    module="widenet_jax.text.encoder:TextEncoder",
    settings="widenet_jax.text.settings:TextSettings",
    usual={"vocab_size": 30_000, "head": "pretraining", "num_classes": 0},
    fit="widenet_jax.text.weights.huggingface:fit",
    families=("BERT", "ALBERT", "BERT-MoE", "WideNet"),
    detail="embeddings of width {embedding_dim}",
    readers=("widenet_jax.text.weights.huggingface:read_huggingface",),
    section="widenet_jax.text.weights.huggingface_config:model_section",
    usable="widenet_jax.text.weights.huggingface:usable",
    layout="widenet_jax.text.weights.huggingface:layout",
)
