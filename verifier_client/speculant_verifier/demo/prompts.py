"""What the demo asks the model to continue: beginnings of code in the style of the library it was trained on."""

from __future__ import annotations

PROMPTS = (
    "class EchoProtocol(asyncio.Protocol):\n    def connection_made(self, transport):",
    'class MemoryHandler(logging.Handler):\n    """\n    A handler class which writes logging records',
    "    def do_GET(self):",
    "    async def join(self):",
    "class Semaphore:\n    def __init__(self, value=1):",
    "def loads(s, *, cls=None):",
)
