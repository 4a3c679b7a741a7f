"""Documents, schemas and other files generated from the code: `python -m docs.generate [--check]`."""
