"""Learning: from logged data to checked bundles. Needs the `train` extra; the server needs none of it."""
