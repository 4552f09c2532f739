"""Every name and byte on disk: request ids, parts, control files, datasets. Importing it imports nothing else."""
