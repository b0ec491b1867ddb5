"""Modules of our own in stock models, where the stock one cannot compute what a file says, or not for batches.

One file an architecture, named by its plan, with one function ``adapt(model, plan)``. It changes the stock model before the
checkpoint's tensors are put into its leaves; modules keep the paths that the family's slots name.
"""
