"""A Model Context Protocol server with one tool, for clients that start it themselves."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("weather")


@server.tool()
def get_weather(place: str) -> str:
    """Return the weather of a place."""
    return f"sunny in {place}, 17 degrees"


server.run()
