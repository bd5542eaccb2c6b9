"""Which addresses and folders each of several workers has, so that none is in another's way.

Imports no gRPC: the supervisor of workers needs this.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from speculant_graph.config import ServerConfig
from speculant_graph.errors import ConfigError

_UNIX_PREFIX = "unix://"
_MAX_PORT = 65_535


def worker_configs(config: ServerConfig) -> list[ServerConfig]:
    """Return the settings of every worker.

    Args:
        config: settings of the service; its ``workers`` says how many there are.

    Raises:
        ConfigError: an address is none, or two workers would have the same one.
    """
    configs = [worker_config(config, index) for index in range(config.workers)]
    owners: dict[str, int] = {}
    for index, own in enumerate(configs):
        for address in ",".join((own.listen, own.admin_listen, own.metrics_listen)).split(","):
            if not address or address.endswith(":0"):
                continue
            if address in owners:
                raise ConfigError(
                    f"workers {owners[address]} and {index} would both have the address {address}; "
                    f"choose ports that are at least {config.workers} apart"
                )
            owners[address] = index
    return configs


def worker_address(address: str, index: int, count: int) -> str:
    """Return a worker's own address, or list of them.

    Args:
        address: addresses of the service, separated by commas, or nothing.
        index: number of the worker, from 0.
        count: workers in all; the only one has the addresses as they are.

    Raises:
        ConfigError: a port would be too large, or it is no address.
    """
    if count == 1 or not address:
        return address
    return ",".join(_numbered(part.strip(), index) for part in address.split(","))


def _numbered(address: str, index: int) -> str:
    if address.startswith(_UNIX_PREFIX):
        path = PurePosixPath(address.removeprefix(_UNIX_PREFIX))
        if path.name:
            return f"{_UNIX_PREFIX}{path.with_stem(f'{path.stem}-{index}')}"
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdigit()) or "/" in host:
        raise ConfigError(f"{address!r} is not an address; write unix:///path/to.sock or host:port")
    number = int(port) and int(port) + index  # every worker chooses one of its own for port 0
    if number > _MAX_PORT:
        raise ConfigError(f"{address}: worker {index} would have port {number}; choose a lower one")
    return f"{host}:{number}"


def worker_config(config: ServerConfig, index: int) -> ServerConfig:
    """Return the settings of one worker: its own addresses and its own folder of learned text.

    Args:
        config: settings of the service; its ``workers`` says how many there are.
        index: number of the worker, from 0.

    Raises:
        ConfigError: it can't have addresses of its own.
    """
    if config.workers == 1:
        return config
    return config.model_copy(
        update={
            "listen": worker_address(config.listen, index, config.workers),
            "admin_listen": worker_address(config.admin_listen, index, config.workers),
            "metrics_listen": worker_address(config.metrics_listen, index, config.workers),
            "learned": None if config.learned is None else config.learned / f"worker-{index}",
            "workers": 1,
        }
    )
