"""Run directory: paths, and one pydantic model for each file in it. Imports without torch.

Import each name from its own module: `run_directory`, `run_json` and `json_files` use the standard library
alone, so `status` does not load pydantic.
"""
