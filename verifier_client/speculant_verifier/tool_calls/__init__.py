"""Calls of tools in what a model writes: found as it comes, and demanded where a client wants one."""

from speculant_verifier.tool_calls.json_calls import JsonCalls
from speculant_verifier.tool_calls.styles import STYLES, CallStyle, style_of

__all__ = ["STYLES", "CallStyle", "JsonCalls", "style_of"]
