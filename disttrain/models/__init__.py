"""What is trained: one module per model kind, each with a `build` that takes a `Source` and returns an `nn.Module`."""
