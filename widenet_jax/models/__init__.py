"""Models: stacks of blocks with an embedding before and a head after them.

A model is a Linen module, built from `config.model` by `build.build_model`. Its contract:

    model(inputs, *, train) -> (outputs, aux)
      inputs   mapping of arrays by name, each [B, ...]; the model's docstring names them
      train    True: dropout and routing noise, from the random streams "dropout" and "router"
      outputs  what the task makes of them: logits [B, V] of a classifier
      aux      {} or {"losses": {name: [operations]}, "loss": [operations], "sums": {name:
               [operations, ...]}}: those of the feed-forwards, see `feed_forwards`

and, from `block_settings.BlockSettings`: the fields of its blocks; `check()`, which refuses fields
that do not fit each other; `summarize(sums)`, metrics from aux["sums"] added up over batches; and
`examples_per_group`, how many consecutive examples of a batch belong together. A model that is to
have experts, or to be planned, also defines `num_tokens(input_spec)`, T of an example.

Fields `unroll` and `remat` change neither the parameters nor the results, but the random numbers of
dropout and noise. A caller that wants the intermediate results of single blocks
(`capture_intermediates`) clones the model with unroll=True and remat="none".

To add a model: one file, and one entry in `build.MODELS`.
"""
