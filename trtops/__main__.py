"""``python -m trtops``: the ``trtops`` command."""

import os
import sys

# Python searches the working folder first, where a downloaded model may come with its own `onnxruntime.py`.
if sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(os.path.abspath(__file__))):
    del sys.path[0]

from trtops.cli.main import main as main

if __name__ == "__main__":  # child processes import this file again
    sys.exit(main())
