"""`mergepoint recipe`: list, show, draw, check and run recipes of streams."""
