"""Sources of texts: prepared sets and the embedded novel to pretrain on, tables and questions.

`text_records` and `instances` serve pretraining; `files` and `sequences` what `tables` and `squad`
share.
"""
