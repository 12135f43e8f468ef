"""Every field of a config, with its meaning and its usual value.

A config file takes these and changes what it needs:

  from configs import defaults

  def get_config(variant="widenet_b"):
      family, size, options = parse_variant(variant)
      config = defaults.get_config(vision_model(family, size, options))
      config.update(batch_size=512, optimizer={"name": "sgd", "momentum": 0.9})
      return config

`--print_config` and docs/CONFIG.md take a field's comment from the end of its line, here and, of
`config.model`, in *sizes.py.

A name that is not here is refused, so that a misspelt one cannot go unnoticed. To add a field for
a new task or data set: `with config.unlocked(): ...`. Numbers are checked: whole ones are at least
1 and others at least 0, unless `LEAST` in widenet_jax/config/files.py says otherwise.

Durations are text, a number and a unit: "500 steps", "1e6 examples", "2.5 epochs". A warm-up may
also be a share of the run, "5%", which follows another config.duration.
"""

from ml_collections import ConfigDict


def get_config(model: dict, task: str = "classification") -> ConfigDict:
    """Returns the default config around the `config.model` section `model`.

    Args:
      model: a section that sizes.py or text_sizes.py makes.
      task: a key of `SECTIONS`.
    """
    config = ConfigDict()
    config.seed = 0  # of initialisation, dropout, routing noise and the order of the data
    config.init_from = ""  # a run, an export, or public weights; "": from scratch
    config.batch_size = 128  # examples a step, over all devices
    config.duration = "10 epochs"  # of the run, in epochs, steps or examples
    config.log_every_steps = 10  # metrics; costs one synchronisation with the devices
    config.on_nonfinite = "stop"  # stop; skip: leave out updates that are not finite
    config.max_skipped_updates = 10  # with on_nonfinite=skip; after more of them the run stops

    config.model = model  # *sizes.py have the fields
    follow_model(config.model)

    for section, fields in SECTIONS[task]().items():
        config[section] = fields
    config.data.update(
        num_workers=0,  # reading processes on each host; 0: threads
        prefetch=4,  # batches that are read ahead
        on_bad_example="error",  # error; skip: replace examples that cannot be read
        max_bad_fraction=0.001,  # more fail the run; small sets: 10 examples, at most 5%
    )
    config.optimizer = {
        "name": "adamw",  # adamw, lamb, sgd
        "learning_rate": 1e-3,  # after the warm-up
        "end_learning_rate": 0.0,  # where the schedule ends; constant has none
        "schedule": "cosine",  # after the warm-up: cosine, linear, constant
        "warmup": "0 steps",  # linear, from 0; also "5%" of the run, "1 epoch"
        "b1": 0.9,  # decay of the mean of the gradients; adamw, lamb
        "b2": 0.999,  # decay of the mean of their squares; adamw, lamb
        "eps": 1e-6,  # added to the root of that mean; adamw, lamb
        "momentum": 0.9,  # of sgd
        "weight_decay": 0.0,  # inside LAMB's trust ratio; decoupled in AdamW; an L2 loss in SGD
        "grad_clip_norm": 1.0,  # global norm; 0: no clipping
        "exclude_norm_and_bias": True,  # from decay, and from LAMB's trust ratio
        "decay_exclude": "",  # regular expression of whole parameter paths that do not decay
        "accumulation_steps": 1,  # micro-batches of a step
        "layer_decay": 1.0,  # of the learning rate, from each layer to the one below; 1: none
        "ema_decay": 0.0,  # of an average of the parameters to evaluate and export; 0: none
        "freeze": "none",  # none; backbone: only the head learns (a linear probe)
    }
    config.evaluation = {
        "batch_size": 512,  # examples, over all devices
        "every": "1 epoch",  # during training; a run always ends with one
        "patience": 0,  # so many without a better primary metric end the run; 0: none
    }
    config.checkpoint = {
        "every": "1 epoch",  # a run also saves at its end and where it is stopped
        "keep": 2,  # the newest checkpoints; the best one is kept, too
    }
    config.sharding = {  # axes of the mesh; `data` takes what is left
        "fsdp": 1,  # devices that share out the parameters; -1: all that expert leaves
        "expert": 1,  # devices that share out the experts
    }
    config.watchdog = {
        "dump_after_seconds": 900,  # without progress: print the stacks of all threads; 0: never
        "exit_after_seconds": 0,  # without progress: end the process; 0: never
    }
    config.tracking = {
        "tensorboard": True,  # whether WORKDIR/tensorboard is written
        "wandb_project": "",  # of Weights & Biases; "": none
    }
    return config.lock()


def follow_model(model: ConfigDict) -> None:
    """Lets fields of the feed-forward's section follow the model's of that name, if they are equal.

    A flag for the model's field then sets both, and one for the section's field that one alone.
    """
    section = model.get(model.get("ffn", "")) or {}
    for name in ("activation", "kernel_init"):
        if name in section and section[name] == model[name]:
            section[name] = model.get_oneway_ref(name)


def classification() -> dict:
    """Returns the sections of image classification."""
    return {
        "task": {
            "name": "classification",  # what a batch means; the config file chooses it
            "label_smoothing": 0.0,  # in [0, 1)
            "class_weights": "none",  # none; balanced: each class has the same weight in the loss
        },
        "data": {
            "source": "array_record",  # array_record, image_folder, tfds, digits
            "name": "",  # of a TFDS set
            "path": "",  # a directory, gs:// too (not image_folder); "": that of TFDS
            "train_split": "train",  # a name, or a slice as in TFDS, such as "train[:90%]"
            "eval_split": "test",  # as train_split, such as "train[90%:]"
            "eval_fraction": 0.0,  # of an image folder without eval_split, held out by file name
            "image_size": 224,  # pixels a side, after cropping
        },
        "augment": {
            "exif_orientation": True,  # turn photos as their EXIF says; false: the stored pixels
            "crop": "inception",  # inception: a random part; pad: shift by up to pad_pixels
            "crop_area_min": 0.05,  # of the image, for crop=inception
            "pad_pixels": 0,  # for crop=pad
            "flip": True,  # left to right, every second image
            "randaugment_layers": 0,  # operations on each image; 0: no RandAugment
            "randaugment_magnitude": 15.0,  # of each operation, 0 to 30
            "randaugment_before_crop": False,  # as in the authors' code
            "color_jitter": 0.0,  # largest change of brightness, contrast, saturation; 0: none
            "random_erasing": 0.0,  # probability that a rectangle becomes noise; 0: none
            "eval_crop": "squash",  # squash: the whole image; central: a square from the middle
            "eval_crop_fraction": 1.0,  # of the short side, for eval_crop=central
            "mixup_alpha": 0.0,  # lambda ~ Beta(alpha, alpha) for each example; 0: no mixup
            "cutmix_alpha": 0.0,  # as mixup_alpha, for CutMix; with both, each example has one
            "mixup_group_size": 16,  # partners come from so many neighbours in the batch
        },
    }


def masked_lm() -> dict:
    """Returns the sections of masked language modelling with sentence order."""
    return {
        "task": {
            "name": "masked_lm",  # what a batch means; the config file chooses it
            "mask_fraction": 0.15,  # of a sequence's tokens, special ones included
            "max_predictions": 0,  # P; 0: mask_fraction of max_length
            "max_ngram": 3,  # words masked together; 1: single words
        },
        "data": {
            "source": "text",  # text; tiny_text: an embedded novel, with data.path empty
            "path": "",  # a set that scripts/prepare_data.py text wrote, local or gs://
            "train_split": "train",  # its name in the set
            "eval_split": "valid",  # its name in the set
            "max_length": 512,  # T, tokens of a sequence
        },
    }


def text_classification() -> dict:
    """Returns the sections of classification of texts and pairs of texts."""
    return {
        "task": {
            "name": "text_classification",  # what a batch means; the config file chooses it
        },
        "data": {
            "source": "table",  # of texts and labels
            "path": "",  # a directory of splits, train.tsv, dev.tsv, ..., or one file
            "tokenizer": "",  # a tokenizer.json, vocab.txt or .model; "": that of init_from
            "train_split": "train",  # the name of its file, without the ending
            "eval_split": "dev",  # as train_split
            "max_length": 512,  # T, tokens of a sequence
            "text_column": "",  # "": as in GLUE, Hugging Face's and TFDS's sets
            "pair_column": "",  # of second texts; "": as text_column, or none
            "label_column": "",  # "": as text_column
            "label_names": "",  # of labels 0, 1, ...: "negative,positive"; "": as in the file
        },
    }


def span() -> dict:
    """Returns the sections of question answering by a span of the context."""
    return {
        "task": {
            "name": "span",  # what a batch means; the config file chooses it
            "head": "beam",  # beam: ALBERT's; span: BERT's
            "unanswerable": False,  # whether some questions have no answer (SQuAD2.0)
            "max_answer_length": 30,  # tokens
            "null_threshold": 0.0,  # no answer where the null score is above
        },
        "data": {
            "source": "squad",  # questions on paragraphs
            "path": "",  # a directory of splits in the official JSON or as parquet
            "tokenizer": "",  # a tokenizer.json, vocab.txt or .model; "": that of init_from
            "train_split": "train",  # the name of its file, without the ending
            "eval_split": "dev",  # as train_split
            "max_length": 384,  # T, tokens of a window
            "max_question_length": 64,  # tokens
            "stride": 128,  # tokens between the starts of two windows
        },
    }


def language_modeling() -> dict:
    """Returns the sections of language modelling."""
    return {
        "task": {
            "name": "language_modeling",  # what a batch means; the config file chooses it
            "memory_length": 0,  # M, tokens that a segment sees beside its own; 0: max_length
            "eval_memory_length": 0,  # M in evaluation; 0: 4 times max_length
        },
        "data": {
            "source": "token_stream",  # token_stream; tiny_pieces: an embedded novel in word pieces
            "path": "",  # of prepare_data.py stream, or a file, as bytes; "": an embedded novel
            "train_split": "train",  # its name in the set
            "eval_split": "valid",  # its name in the set
            "max_length": 512,  # T, tokens of a segment
        },
    }


# config.task.name -> the sections that depend on it
SECTIONS = {
    "classification": classification,
    "masked_lm": masked_lm,
    "text_classification": text_classification,
    "span": span,
    "language_modeling": language_modeling,
}


def mixup_group_size(model: ConfigDict) -> int:
    """Returns the token group's size, so that mixup's partners stay in one group.

    Models without experts, or with groups of one image, mix within 16 neighbours.
    """
    images = model.moe.examples_per_group if model.moe else 1
    return images if images > 1 else 16
