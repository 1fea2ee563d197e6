"""The computation of one replica in a step, and the update after the sum."""
