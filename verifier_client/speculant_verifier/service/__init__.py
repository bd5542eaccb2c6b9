"""The verifier as a service: gRPC, and HTTP, over one decoder."""
