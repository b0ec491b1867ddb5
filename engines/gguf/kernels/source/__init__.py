"""Device source that CUDA and Metal share."""
