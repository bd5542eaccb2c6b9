"""Tells the processor which memory a kernel will need soon, so that it need not wait for it."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_READ, _KEEP, _DATA = 0, 3, 1


def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Type and generate the call; numba hands the typing context over itself."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address_type = ir.IntType(8).as_pointer()
        address = builder.bitcast(builder.gep(data, [arguments[1]]), address_type)
        number_type = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [address_type, *[number_type] * 3])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address_type], function_type)
        builder.call(function, [address, number_type(_READ), number_type(_KEEP), number_type(_DATA)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


prefetch: Any = intrinsic(_prefetch)
"""``prefetch(array, index)``: ask for an element of a one-dimensional array. It is loaded meanwhile; nothing waits."""
