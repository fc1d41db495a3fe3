"""`apply` and `export`: the mirrors of a destination as a file that is reviewed."""
