"""What a run leaves behind, without torch: the run directory, and one model for each file in it.

Import each name from its own module: `run_directory` and `json_files` load nothing beyond the standard
library, so `status` need not wait for pydantic.
"""
