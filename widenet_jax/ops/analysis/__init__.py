"""Analysis of trained models.

`figures` (learning curves), `norm_divergence`, `routing`, `expert_usage`, `over_source` (evaluation
over a split), `classification` (accuracy, confusions), `class_prediction` (of single examples).
Images: `image_prediction`, `image_overlay`; texts: `text_prediction`, `token_kinds`. `report` is
`scripts/analyze.py`'s selection.
"""
