"""The verifier as a service: gRPC, and beside it HTTP, over one decoder."""
