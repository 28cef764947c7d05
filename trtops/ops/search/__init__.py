"""Searches: the smallest part, the fewest layers, the first tensor, the rarest failure."""
