"""Results of a study, as numbers: curves, losses, costs, comparisons."""
