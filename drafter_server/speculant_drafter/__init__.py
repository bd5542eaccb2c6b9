"""The drafter sidecar: a gRPC shell round the draft generator. Knows neither torch nor text."""
