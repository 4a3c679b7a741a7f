"""Steps under PyTorch's profiler: their collectives, and traces on request."""
