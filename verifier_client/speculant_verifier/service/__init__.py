"""The verifier as a service: gRPC and HTTP APIs that share one decoder."""
