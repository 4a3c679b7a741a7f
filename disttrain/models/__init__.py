"""What is trained: one module per model kind, each with a `build` from a `Source` to an `nn.Module`."""
