// A verifier's CPU kernels for scores, the KV cache and packed weights.
#include <nanobind/stl/pair.h>

#include "arrays.hpp"
#include "kernels/mxfp4.hpp"
#include "kernels/scores.hpp"
#include "kernels/slots.hpp"

namespace speculant {

using namespace nb::literals;

namespace {

template <class Number>
void bind_decoding(nb::module_& module) {
  module.def(
      "decode_mxfp4",
      [](const Vector<const std::uint8_t>& packed, const Vector<const std::uint8_t>& exponents,
         const Vector<Number>& numbers) {
        nb::gil_scoped_release release;
        decode_mxfp4(as_span(packed), as_span(exponents), as_span(numbers));
      },
      "packed"_a.noconvert(), "exponents"_a.noconvert(), "numbers"_a.noconvert(),
      "Decode blocks of 32 numbers of four bits (MXFP4) to float32, or to the bits of bfloat16 as unsigned integers:\n"
      "16 bytes and one exponent for each block. All numbers are exact.");
}

}  // namespace

void bind_verify(nb::module_& module) {
  module.def(
      "gumbel_argmax",
      [](const Vector<const float>& scores, std::uint64_t noise_key) {
        nb::gil_scoped_release release;
        return gumbel_argmax(as_span(scores), noise_key);
      },
      "scores"_a, "noise_key"_a,
      "Return the token with the largest sum of score and noise, and the sum: NaN if a score is NaN or +inf.");
  module.def(
      "top_p_filter",
      [](const Vector<const float>& scores, const Vector<const float>& probabilities, float most_removed,
         const Vector<float>& kept) {
        if (probabilities.size() != scores.size() || kept.size() != scores.size()) {
          throw std::invalid_argument("give one probability and one kept score for each score");
        }
        TopPBorder border;
        {
          nb::gil_scoped_release release;
          border = top_p_filter(as_span(scores), as_span(probabilities), most_removed, as_span(kept));
        }
        return std::pair(as_array(std::move(border.tokens)), border.mass);
      },
      "scores"_a, "probabilities"_a, "most_removed"_a, "kept"_a.noconvert(),
      "Copy the scores of tokens that are more probable than the border of the nucleus; others become -inf.\n"
      "Return the tokens at the border, which are about equally probable, and the mass of the tokens below it.");
  bind_decoding<float>(module);
  bind_decoding<std::uint16_t>(module);
  module.def(
      "move_slots",
      [](const Array<std::int16_t, nb::ndim<4>>& memory, const Ids& rows, const Ids& source, const Ids& target) {
        if (source.size() != rows.size() || target.size() != rows.size()) {
          throw std::invalid_argument("give a row, a source and a target for each move");
        }
        nb::gil_scoped_release release;
        move_slots({as_span(memory), memory.shape(0), memory.shape(1), memory.shape(2), memory.shape(3)}, as_span(rows),
                   as_span(source), as_span(target));
      },
      "memory"_a.noconvert(), "rows"_a, "source"_a, "target"_a,
      "Copy slots of rows of a buffer ``[rows, heads, slots, width]`` to other slots, one after another.");
}

}  // namespace speculant
