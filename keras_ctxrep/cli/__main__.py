"""`python -m keras_ctxrep.cli`."""

import sys

from keras_ctxrep.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
