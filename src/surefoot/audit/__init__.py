"""Whether speculation changed anything: our engine, any server, transformers."""
