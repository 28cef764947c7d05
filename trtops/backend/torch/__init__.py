"""PyTorch modules and programs as models. Importing this package does not import torch."""
