"""Case ``objectstore``: see its README."""
