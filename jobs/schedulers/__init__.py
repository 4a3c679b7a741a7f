"""One folder for each scheduler, behind the interface in `base.py`."""
