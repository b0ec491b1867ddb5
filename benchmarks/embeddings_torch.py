"""sentence-transformers, asked line by line: ``python embeddings_torch.py MODEL THREADS DEVICE [half]`` in an environment
that has it.

A line is ``{"texts": […], "what": "vectors" | "seconds"}``; the answer is a line too: the vectors, or how long they took.
"""

from __future__ import annotations

import json
import sys
import time

import torch  # type: ignore[import-not-found]
from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]


def main() -> None:
    path, threads, device, *half = sys.argv[1:]
    torch.set_num_threads(int(threads))
    model = SentenceTransformer(path, device=device)
    if half:
        model.half()
    for line in sys.stdin:
        asked = json.loads(line)
        started = time.perf_counter()
        vectors = model.encode(asked["texts"], show_progress_bar=False)
        seconds = time.perf_counter() - started
        print(json.dumps(vectors.astype("float32").tolist() if asked["what"] == "vectors" else seconds), flush=True)


if __name__ == "__main__":
    main()
