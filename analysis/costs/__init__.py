"""Cost, energy and carbon of training."""
