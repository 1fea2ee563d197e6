"""Models whose class trains, evaluates or computes its loss by itself."""
