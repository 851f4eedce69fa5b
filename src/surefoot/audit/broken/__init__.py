"""Engines with one fault each, for audits to find: every fault is one that some engine had, or that is easily
made."""
