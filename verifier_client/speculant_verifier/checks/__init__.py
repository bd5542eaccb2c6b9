"""What ``speculant doctor`` looks at in the verifier. Apart, as the libraries of models take seconds to import."""
