"""Model kinds: one module each, with a `build` from a `DataShape` to an `nn.Module`."""
