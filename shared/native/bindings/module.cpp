// The module: what Python sees of the core.
#include "arrays.hpp"
#include "trie.hpp"

NB_MODULE(_core, module) {
  using namespace speculant;
  module.doc() = "Look-ups, drafts and what they learn, in C++. Calls work without the GIL.";
  nb::exception<RequestError>(module, "RequestError", PyExc_ValueError);
  bind_graph(module);
  bind_sequences(module);
  bind_drafter(module);
  bind_draws(module);
  bind_build(module);
  bind_verify(module);
}
