"""The drafter's wire protocol: messages, errors and channels."""
