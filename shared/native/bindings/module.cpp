// The core's Python module.
#include "arrays.hpp"
#include "errors.hpp"
#include "locks.hpp"

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
    if (error.retry_delay_s > 0.0) {
      raise("OverloadError", error.what(), error.retry_delay_s);
    } else {
      raise("DraftLimitError", error.what());
    }
  } catch (const RequestError& error) {
    raise("DraftRequestError", error.what());
  } catch (const UnavailableError& error) {
    raise("DrafterUnavailableError", error.what());
  }
}

/// Statistics of locks, for a bench and the tests.
void bind_locks(nb::module_& module) {
  module.def(
      "record_lock_holds", [](bool is_recorded) { LockHolds::is_recorded = is_recorded; }, nb::arg("is_recorded"),
      "Start, or stop, recording how long locks are held in the whole process.");
  module.def(
      "take_lock_holds",
      [] {
        nb::dict holds;
        for (std::size_t kind = 0; kind < lock_holds.size(); ++kind) {
          LockHolds& each = lock_holds[kind];
          holds[kLockNames[kind]] = nb::make_tuple(each.count.exchange(0), each.longest_ns.exchange(0));
        }
        return holds;
      },
      nb::sig("def take_lock_holds() -> dict[str, tuple[int, int]]"),
      "Return and reset the number of recorded holds of each kind of lock, and the longest hold in nanoseconds.");
}

}  // namespace
}  // namespace speculant

NB_MODULE(_core, module) {
  using namespace speculant;
  module.doc() =
      "Look-ups, drafts, learning, and the steps of the wire, in C++. Calls work without the GIL, and raise\n"
      "the errors of ``speculant_graph.errors``: a caller's mistake is a DraftRequestError.";
  nb::register_exception_translator(translate);
  bind_graph(module);
  bind_drafter(module);
  bind_neural(module);
  bind_mixer(module);
  bind_build(module);
  bind_verify(module);
  bind_steps(module);
  bind_rows(module);
  bind_local_steps(module);
  bind_request_writer(module);
  bind_messages(module);
  bind_locks(module);
}
