"""Whether speculation changed what a server answers: any two that speak OpenAI's HTTP API."""
