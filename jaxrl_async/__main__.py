"""``python -m jaxrl_async``."""

import sys

from jaxrl_async.cli import main

sys.exit(main())
