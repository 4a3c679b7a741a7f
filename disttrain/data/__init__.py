"""What is trained on: one module per data kind, each with a `build` that returns a `Source`."""
