// The module: what Python sees of the core.
#include "arrays.hpp"
#include "errors.hpp"

namespace speculant {
namespace {

/// Raise an error of speculant_graph/errors.py.
template <class... Arguments>
void raise(const char* name, Arguments... arguments) {
  const nb::object type = nb::module_::import_("speculant_graph.errors").attr(name);
  PyErr_SetObject(type.ptr(), type(arguments...).ptr());
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const LimitError& error) {
    raise("DraftLimitError", error.what(), error.retry_delay_s);
  } catch (const RequestError& error) {
    raise("DraftRequestError", error.what());
  } catch (const UnavailableError& error) {
    raise("DrafterUnavailableError", error.what());
  }
}

}  // namespace
}  // namespace speculant

NB_MODULE(_core, module) {
  using namespace speculant;
  module.doc() =
      "Look-ups, drafts and what they learn, and the steps of the wire, in C++. Calls work without the GIL, and raise\n"
      "the errors of ``speculant_graph.errors``: a caller's mistake is a DraftRequestError.";
  nb::register_exception_translator(translate);
  bind_graph(module);
  bind_drafter(module);
  bind_build(module);
  bind_verify(module);
  bind_steps(module);
  bind_messages(module);
}
