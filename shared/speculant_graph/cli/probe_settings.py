"""What ``speculant probe`` can be told; in a file of its own, as most probes need none of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from pydantic_settings import CliPositionalArg

from speculant_graph.config import ClientConfig
from speculant_graph.settings import CommandSettings

if TYPE_CHECKING:
    import grpc


class ProbeSettings(CommandSettings):
    """Ask drafters and verifiers whether they serve, by gRPC's standard health service.

    The exit status is 0 if all of them do, else 1.
    """

    address: CliPositionalArg[str]
    """Where they listen: 'unix:///path/to.sock' or 'host:port', several of them separated by commas."""
    service: str = ""
    """Ask of this service; empty: of all that is served there."""
    timeout_s: Annotated[float, Field(gt=0)] = 1.0
    """Patience with each address."""
    wait_s: Annotated[float, Field(ge=0)] = 0.0
    """Ask again until all of them serve, for so long; scripts that start servers wait so."""
    client: ClientConfig = ClientConfig()
    """Certificates; the other settings have no effect here."""


def channels_of(settings: ProbeSettings) -> dict[str, grpc.Channel]:
    """Return a channel for each address.

    Raises:
        ConfigError: an address is malformed, or certificates can't be used.
    """
    from speculant_graph.rpc.addresses import split_addresses
    from speculant_graph.rpc.channel import Endpoint

    # Health checks ask for no credentials. So none are sent, and an address in the clear is no reason to refuse.
    client = settings.client.model_copy(update={"token": None})
    return {address: Endpoint.of(address, client).connect() for address in split_addresses(settings.address)}
