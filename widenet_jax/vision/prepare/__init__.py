"""Packing of image sets in other layouts into the format of `data.records`; checks and previews.

`packing` states the contract of a reader. `archives` reads tar archives and verifies them to their
end; input files are opened by `data.input_files`, which refuses all but regular files.
"""
