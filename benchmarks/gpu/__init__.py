"""Everything that a machine with a GPU is wanted for, in under 9 minutes: `make gpu`."""
