"""How engines' tensor parallelism follows lengths that grow and shrink."""
