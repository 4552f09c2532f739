"""Every name and byte on disk: request ids, parts, control files, datasets. Importing the package imports nothing else."""
