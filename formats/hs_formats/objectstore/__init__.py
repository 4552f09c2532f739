"""Datasets in object stores. Imported only where a location is a URL; needs the extra ``s3`` (obstore)."""
