// The numbers that draws are made by, and the draws themselves: tests hold them against their definitions.
#include "arrays.hpp"
#include "distribution.hpp"
#include "random_stream.hpp"

namespace speculant {

using namespace nb::literals;

void bind_draws(nb::module_& module) {
  module.def("uniform", &uniform, "seed"_a, "position"_a, "stream"_a,
             "Return the number of ``random_stream.uniform``; all arguments modulo 2**64.");
  module.def(
      "gumbel_noise",
      [](std::uint64_t seed, std::uint64_t position, std::uint64_t token_id) {
        return gumbel_noise(noise_word(noise_key(seed, position), token_id));
      },
      "seed"_a, "position"_a, "token_id"_a, "Return the number of ``random_stream.gumbel_noise`` for one token.");
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
