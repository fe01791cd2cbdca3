"""Selection, pruning, budget and instantiation."""
