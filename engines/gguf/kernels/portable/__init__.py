"""Products by MLX ops alone: any device, lazy, and the yardstick for the others."""

from engines.gguf.kernels.portable.backend import PortableBackend

__all__ = ["PortableBackend"]
