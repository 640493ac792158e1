"""NumPy transcriptions of the papers' pseudocode, independent of the package.

Written from the formulas alone; README.md lists what was decided where the
formulas leave a choice. Nothing here imports tf_dpadaptive.
"""
