"""What ``speculant doctor`` looks at: one file for each part of an installation."""
