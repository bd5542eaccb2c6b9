"""The drafter sidecar: gRPC round the draft generator. Depends on neither torch nor text."""
