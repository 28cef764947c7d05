"""Surgeon: cut, clean, change and shrink ONNX models.

Every verb takes a model (a path, or one in memory), leaves it as it is, and gives back a new one with what was done to
it. A model file may have any size: weights beside it are read, and written beside the new file where it gets too large.
"""
