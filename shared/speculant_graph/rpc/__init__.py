"""The drafter on the wire: messages, errors, channels."""
