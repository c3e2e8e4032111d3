"""Results as pages for a browser: one file that needs nothing else."""
