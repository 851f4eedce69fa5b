"""The commands: each module has `add(commands)`, which adds its parser, and a function that runs it."""
