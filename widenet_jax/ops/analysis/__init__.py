"""Analysis of trained models.

`captured`: the routing of every token and its active hidden units. `usage`: their statistics over a
source, for texts by the kinds of `usage.token_kinds`. `norm_divergence`: eq. 9 of WideNet.
`loops`: states, chosen experts and number of a model's loops.
`figures` and `image_overlay` draw them; `report` is the selection of `scripts/analyze.py`.
"""
