"""`python -m keras_ctxrep.cli`."""

import sys

from keras_ctxrep.cli.main import main

sys.exit(main())
