"""The process a rank runs in: process group, device, random seeds, logs, stop signals, failure record."""
