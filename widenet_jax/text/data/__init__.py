"""Text: tokenizers, documents to chunks of sentences, records, and what pretraining makes of them.

`tokenizer` loads every format of tokenizer; `sentences` and `chunking` turn a document into
chunks, and `text_records` stores them. The functions of one document are shared by the worker
processes of `prepare_data.py text`, by its Apache Beam pipeline and by the embedded text.
"""
