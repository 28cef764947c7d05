"""Campaigns: one model is built again and again, until it is known why some builds are bad."""
