"""Language modelling and the Transformer-XL, as `specs` describes them."""

from widenet_jax.specs import (
    WHERE_IT_FITS,
    CardSpec,
    ModelSpec,
    Part,
    PredictSpec,
    SourceSpec,
    TaskSpec,
)

LANGUAGE_MODELING = TaskSpec(
    name="language_modeling",
    task="widenet_jax.language.task:LanguageModeling",
    sections={
        "task": {
            "memory_length": (0, "M, tokens that a window sees before its own; 0: T", 0, 2**20),
            "eval_memory_length": (0, "M in evaluation; 0: 4 T", 0, 2**20),
        },
        "data": {
            "source": (
                "token_stream",
                "token_stream; tiny_pieces: an embedded novel in word pieces",
            ),
            "path": ("", 'of prepare_data.py stream, or a file, as bytes; "": an embedded novel'),
            "train_split": ("train", "its name in the set"),
            "eval_split": ("valid", "its name in the set"),
            "max_length": (512, "T, tokens of a window", 1, 2**20),
        },
    },
    transforms="widenet_jax.language.data.token_streams:window_transforms",
    example="widenet_jax.language.data.token_streams:example_of",
    sources={
        "token_stream": SourceSpec("widenet_jax.language.data.token_streams:open_token_stream"),
        "tiny_pieces": SourceSpec(
            "widenet_jax.language.data.token_streams:open_tiny_pieces",
            reads="the embedded novel",
            instead="token_stream for your text",
        ),
    },
    stream=True,
    sizes=("num_tokens", "vocab_size"),
    sets={  # of word pieces, about as many tokens
        "wikitext103": (140_000_000, 8_000),
        "enwik8": (90_000_000, 256),
        "c4": (10_000_000_000, 8_000),
        "pes2o": (10_000_000_000, 8_000),
        "enwik_s": (5_400_000, 256),
        "token_stream": (417_000, 256),  # without a path: the embedded novel
    },
    predict=PredictSpec(
        form='--continue="A beginning"',
        flags={
            "--continue": {"metavar": "TEXT", "help": "a text for a language model to go on with"},
            "--temperature": {
                "type": "float",
                "metavar": "X",
                "help": "of --continue: divides the logits; 0 takes the likeliest token "
                "(default 1)",
            },
            "--top_k": {
                "type": "positive",
                "metavar": "K",
                "help": "of --continue: draw among so many of the likeliest tokens (default all)",
            },
            "--top_p": {
                "type": "float",
                "metavar": "P",
                "help": "of --continue: draw among the likeliest tokens of this share (default 1)",
            },
            "--length": {
                "type": "positive",
                "metavar": "N",
                "help": "of --continue: tokens to draw (default 200)",
            },
            "--seed": {
                "type": "not_negative",
                "metavar": "N",
                "help": "of the draws of --continue (default 0)",
            },
        },
        run="widenet_jax.language.sampling:predict_more",
    ),
    methods={"continue_text": "widenet_jax.language.sampling:continue_text"},
    card=CardSpec(
        purpose="predicting the next token",
        commands=(
            'python scripts/predict.py --workdir=DIR --continue="Once"',
            "python scripts/evaluate.py --workdir=DIR --file=TEXT",
        ),
        inputs="Texts are read in windows of {max_length} tokens, with a memory of earlier ones.",
    ),
    open_file="widenet_jax.language.data.token_streams:open_file",
    preview="widenet_jax.language.prepare.command:print_windows",
)

LANGUAGE_MODEL = ModelSpec(
    name="language_model",
    module="widenet_jax.language.model:LanguageModel",
    usual={"vocab_size": 8_000},
    parts={
        "embedding": Part(WHERE_IT_FITS, head=False, above=False),
        "output": Part(WHERE_IT_FITS),
    },
    families=("Transformer-XL",) * 4,
    detail="relative positions",
)
