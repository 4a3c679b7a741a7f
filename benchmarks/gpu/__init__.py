"""Tests and measurements that need a GPU, in under 9 minutes: `make gpu`."""
