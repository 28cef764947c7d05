"""Precision: the nodes that must stay in FP32 in a 16-bit model."""
