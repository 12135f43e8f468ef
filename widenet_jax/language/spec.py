"""Language modelling and its models, as `specs` describes them."""

from widenet_jax import specs

DRAWS = {  # flags of --continue: what they are for, what stands for the value, its kind
    "--temperature": ("divides the logits; 0: the likeliest (default 1)", "X", "float"),
    "--top_k": ("draw among so many of the likeliest (default all)", "K", "positive"),
    "--top_p": ("draw among the likeliest of this share (default 1)", "P", "float"),
    "--length": ("tokens to draw (default 200)", "N", "positive"),
    "--seed": ("of the draws (default 0)", "N", "not_negative"),
}
STREAMS = "widenet_jax.language.data.token_streams"

LANGUAGE_MODELING = specs.TaskSpec(
    name="language_modeling",
    task="widenet_jax.language.task:LanguageModeling",
    model="language_model",
    sections={
        "task": {
            "memory_length": (0, "M, tokens that a window sees before its own; 0: T", 0, 2**20),
            "eval_memory_length": (0, "M in evaluation; 0: 4 T", 0, 2**20),
        },
        "data": {
            "source": ("token_stream", "token_stream; tiny_pieces: a novel in word pieces"),
            "path": (
                "",
                'a set of prepare_data.py stream, or a file as bytes; "": an embedded novel',
            ),
            "train_split": ("train", "its name in the set"),
            "eval_split": ("valid", "its name in the set"),
            "max_length": (512, "T, tokens of a window", 1, 2**20),
        },
    },
    transforms=f"{STREAMS}:window_transforms",
    example=f"{STREAMS}:example_of",
    info=("vocab_size",),
    sources={
        "token_stream": specs.SourceSpec(f"{STREAMS}:open_token_stream"),
        "tiny_pieces": specs.SourceSpec(
            f"{STREAMS}:open_tiny_pieces",
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
    predict=specs.PredictSpec(
        form='--continue="A beginning"',
        flags={
            "--continue": specs.Flag("a text for a language model to go on with"),
            **{
                name: specs.Flag(f"of --continue: {what}", *of)
                for name, (what, *of) in DRAWS.items()
            },
        },
        run="widenet_jax.language.sampling:predict_more",
    ),
    methods={"continue_text": "widenet_jax.language.sampling:continue_text"},
    card=specs.CardSpec(
        purpose="predicting the next token",
        pipeline="text-generation",
        commands=(
            'python scripts/predict.py --workdir=DIR --continue="Once"',
            "python scripts/evaluate.py --workdir=DIR --file=TEXT",
        ),
        inputs="Texts are read in windows of {max_length} tokens; relative attention has a "
        "memory of earlier ones.",
    ),
    open_file=f"{STREAMS}:open_file",
    preview="widenet_jax.language.prepare.command:print_windows",
)

LANGUAGE_MODEL = specs.ModelSpec(
    name="language_model",
    module="widenet_jax.language.model:LanguageModel",
    settings="widenet_jax.language.settings:LanguageSettings",
    usual={"vocab_size": 8_000},
    parts={
        "embedding": specs.Part(specs.WHERE_IT_FITS, head=False, above=False),
        "output": specs.Part(specs.WHERE_IT_FITS),
        "exit_gate": specs.Part(specs.WHERE_IT_FITS),
    },
    families=("Language model",) * 4,
    detail="{attention[name]} attention",
)
