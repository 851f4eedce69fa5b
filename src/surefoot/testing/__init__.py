"""Checks for people who write samplers and drafters."""
