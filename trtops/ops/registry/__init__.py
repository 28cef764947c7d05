"""The registry: accepted engines, and tactics that builds must not use."""
