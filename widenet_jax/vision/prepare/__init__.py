"""Converters of image sets in other layouts to the packed format of `data.records`, and previews.

`convert` states the contract of a converter. A tar archive is read by `tar_files` alone, which
verifies it to its end; input files are opened by `convert.open_input` or `data.input_files`, which
refuse all but regular files; labels are checked by `convert.check_labels`.
"""
