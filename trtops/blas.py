"""How threads of numpy's linear algebra wait, in the processes that are ours."""

BRIEF_SPIN = {"OPENBLAS_THREAD_TIMEOUT": "16"}
"""Environment variables with which a thread of OpenBLAS spins for 2**16 cycles, 20 microseconds, before it sleeps.

Unless told, it spins for a tenth of a second, on every core, while numpy is being imported; and most commands multiply nothing.
Products of matrices, small and large, take as long as before. The variable is of OpenBLAS' "Runtime variables".
"""
