"""Analysis of trained models.

Any model: `figures` (learning curves), `norm_divergence`, `routing`. Image classifiers:
`classification` (accuracy, confusions), `expert_usage` and `over_source` (labelled images),
`image_prediction`, `image_overlay`. `report` is `scripts/analyze.py`'s selection.
"""
