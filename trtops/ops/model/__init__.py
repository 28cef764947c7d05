"""Ops on models before anything is built: inspect, check, change and save them."""
