// Draws from a distribution, as the drafts of a draft model are made by.
#include "arrays.hpp"
#include "distribution.hpp"

namespace speculant {

using namespace nb::literals;

void bind_draws(nb::module_& module) {
  module.def(
      "draw",
      [](const Vector<const float>& probabilities, double quantile) {
        if (probabilities.size() == 0) throw std::invalid_argument("nothing can be drawn from nothing");
        return draw(as_span(probabilities), quantile);
      },
      "probabilities"_a, "quantile"_a, "Return the entry of a distribution at a quantile.");
  module.def(
      "draw_left",
      [](const Vector<const float>& probabilities, const Vector<const bool>& is_left, double quantile) {
        if (is_left.size() != probabilities.size()) throw std::invalid_argument("say of every entry if it is left");
        return draw_left(as_span(probabilities), quantile, [&](std::size_t entry) { return is_left(entry); });
      },
      "probabilities"_a, "is_left"_a, "quantile"_a,
      "Return the entry at a quantile of what is left of a distribution.");
}

}  // namespace speculant
