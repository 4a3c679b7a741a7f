"""Model kinds: one module each, with a `build` from a `Source` to an `nn.Module`."""
