"""The OpenAI-compatible server: a thin layer on `surefoot.asynchronous.AsyncEngine`."""
