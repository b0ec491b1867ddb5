"""``python -m engines.gguf.kernels`` prints the status of the kernels as JSON, for those who must not import MLX."""

import json
import sys

from engines.gguf.kernels.status import status

sys.stdout.write(json.dumps(status().as_dict()) + "\n")
