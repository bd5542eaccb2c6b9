"""The verifier as a service: gRPC and HTTP APIs over one decoder."""
