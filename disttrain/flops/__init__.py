"""Model FLOPs, peak rates of devices, and model FLOPs utilization (MFU)."""
