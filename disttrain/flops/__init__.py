"""Model FLOPs counted, peak rates of devices, and the utilization (MFU) that follows from both."""
