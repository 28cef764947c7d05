"""Settings for the linear algebra library of numpy."""

BRIEF_SPIN = {"OPENBLAS_THREAD_TIMEOUT": "16"}
"""Environment variables that make idle OpenBLAS threads spin for 2**16 cycles (20 microseconds) before they sleep.

By default they spin for 0.1 s on every core while numpy is imported, although most commands multiply no matrices. The
speed of matrix products does not change. See "Runtime variables" in the documentation of OpenBLAS.
"""
