"""Used on login and compute nodes alike: journal, attempts, exit causes, requeue policy, processes."""
