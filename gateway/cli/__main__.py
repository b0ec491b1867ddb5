"""``python -m gateway.cli`` is ``innkeeper``."""

import sys

from gateway.cli import main

sys.exit(main())
