"""`hs-client export`: a dataset as the files that a trainer's own loader reads. One module for each trainer."""
