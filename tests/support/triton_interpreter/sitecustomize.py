"""Makes vLLM's V2 runner work on a CPU, for tests; every Python process with this folder on its path imports it.

vLLM for CPUs requires Triton's backend "cpu", which no Triton wheel has. Triton's interpreter is enough, because vLLM
only checks for an active driver. vLLM turns asynchronous scheduling off on CPUs; ``KEEP_ASYNCHRONOUS`` keeps it on.
"""

import os
import sys
from importlib.abc import MetaPathFinder
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")


class _Driver:
    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_device(self) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cpu", 0, 1)


class _AfterImport(MetaPathFinder):
    """Changes modules right after their import."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _CHANGES:
            return None
        from importlib.util import find_spec

        change = _CHANGES.pop(name)
        spec = find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _add_backend(module: Any) -> None:
    module.backends["cpu"] = type("Backend", (), {"compiler": module.backends["amd"].compiler, "driver": _Driver})()


def _take_any_masks(module: Any) -> None:
    """Accept the integer masks of some vLLM kernels, like Triton's compiler and unlike its interpreter."""
    builder = module.InterpreterBuilder
    for name, place in (("create_masked_store", 2), ("create_masked_load", 1)):
        known = getattr(builder, name)

        def with_booleans(self: Any, *args: Any, known: Any = known, place: int = place, **more: Any) -> Any:
            args[place].data = args[place].data.astype(bool)
            return known(self, *args, **more)

        setattr(builder, name, with_booleans)


def _keep_asynchronous(module: Any) -> None:
    check = module.CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, config: Any) -> None:
        check(cls, config)
        config.scheduler_config.async_scheduling = True

    module.CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


_CHANGES = {"triton.backends": _add_backend, "triton.runtime.interpreter": _take_any_masks}
if os.environ.get("KEEP_ASYNCHRONOUS"):
    _CHANGES["vllm.platforms.cpu"] = _keep_asynchronous
sys.meta_path.insert(0, _AfterImport())
