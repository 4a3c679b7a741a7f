"""Process of a rank: process group, device, random seeds, logs, stop requests, failure record."""
