"""Accuracy: the tensor at which two computations of a model begin to differ."""
