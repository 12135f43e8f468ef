"""The mixture of experts: route, assign slots, dispatch, run the experts, combine.

A router (`routers/`) chooses experts for each token, `slots` gives every choice a place in a buffer
or drops it, `dispatch` moves tokens to `experts` and back, `losses` keep the experts in use, and
`statistics` report how they were used; all of these read choices as the masks of `choices`.
`layer.MoeLayer` puts them together.
"""
