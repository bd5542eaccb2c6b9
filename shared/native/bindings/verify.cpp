// What a verifier on a CPU does to scores and to its KV cache.
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numbers>

#include "arrays.hpp"
#include "random_stream.hpp"

namespace speculant {
namespace {

using namespace nb::literals;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kMaxNoiseBits = 53;  // noise is below 53 ln 2, as 52 bits of a word become noise

// Numbers in [0, 1] fall into buckets by the first bits of their form; one to spare is for rounding above 1.
constexpr int kBucketShift = 19;
constexpr std::uint32_t kBuckets = (std::bit_cast<std::uint32_t>(1.0F) >> kBucketShift) + 2;

std::uint32_t bucket_of(float probability) {
  return std::min(std::bit_cast<std::uint32_t>(probability) >> kBucketShift, kBuckets - 1);
}

/// The token with the largest sum of score and Gumbel noise, and that sum; NaN where a score is NaN or +inf.
std::pair<std::int64_t, double> largest_sum(std::span<const float> scores, std::uint64_t noise_key) {
  std::int64_t chosen = 0;
  double best = -kInfinity, hopeless = -kInfinity;
  for (std::size_t token = 0; token < scores.size(); ++token) {
    const double score = scores[token];
    if (score <= hopeless) continue;
    const std::uint64_t word = noise_word(noise_key, token);
    // Noise -log(-log u) is at most -log(1 - u). So a token can only win if 1 - u < exp(score - best), and a power of
    // two that is not smaller than that is a comparison of the word's first bits: hardly any token needs logarithms.
    if (score <= best) {
      const int shift = kMaxNoiseBits + static_cast<int>((score - best) * std::numbers::log2e);
      if (~word >> (64 - kMaxNoiseBits) >> shift != 0) continue;
    } else if (!(score < kInfinity)) {
      return {static_cast<std::int64_t>(token), std::numeric_limits<double>::quiet_NaN()};
    }
    const double sum = score + gumbel_noise(word);
    if (sum > best) {
      chosen = static_cast<std::int64_t>(token), best = sum;
      hopeless = best - kMaxNoiseBits * std::numbers::ln2;
    }
  }
  return {chosen, best};
}

/// Tokens whose probabilities are about as large as the least one that stays, ascending.
struct NucleusBorder {
  std::vector<std::int64_t> tokens;
  double mass = 0;  // of all less probable tokens
};

/// Copy the scores of tokens that are more probable than those of the border, others become -inf.
///
/// All arrays are of one size. Tokens below the border hold at most `most_removed` together.
NucleusBorder keep_above_border(std::span<const float> scores, std::span<const float> probabilities, float most_removed,
                                std::span<float> kept) {
  std::array<double, kBuckets> masses{};
  for (float probability : probabilities) masses[bucket_of(probability)] += static_cast<double>(probability);
  NucleusBorder border;
  std::uint32_t bucket = 0;
  while (bucket < kBuckets - 1 && static_cast<float>(border.mass + masses[bucket]) <= most_removed) {
    border.mass += masses[bucket++];
  }
  const float first_above = std::bit_cast<float>((bucket + 1) << kBucketShift);
  for (std::size_t token = 0; token < scores.size(); ++token) {
    kept[token] = probabilities[token] >= first_above ? scores[token] : -std::numeric_limits<float>::infinity();
  }
  for (std::size_t token = 0; token < scores.size(); ++token) {
    if (bucket_of(probabilities[token]) == bucket) border.tokens.push_back(static_cast<std::int64_t>(token));
  }
  return border;
}

/// A buffer of keys or values, `[rows, heads, slots, width]`, in units of two bytes.
struct SlotBuffer {
  std::span<std::int16_t> memory;
  std::size_t rows = 0, heads = 0, slots = 0, width = 0;
};

/// Copy slots of rows to other slots, one after another; the three are of one size.
///
/// Throws std::invalid_argument, before anything moves, if the buffer has no such row or slot.
void move_slots(const SlotBuffer& buffer, std::span<const std::int64_t> rows, std::span<const std::int64_t> source,
                std::span<const std::int64_t> target) {
  const auto all_below = [](std::span<const std::int64_t> indices, std::size_t size) {
    return std::ranges::all_of(indices, [&](std::int64_t index) { return static_cast<std::uint64_t>(index) < size; });
  };
  if (!all_below(rows, buffer.rows) || !all_below(source, buffer.slots) || !all_below(target, buffer.slots)) {
    throw std::invalid_argument("the buffer has no such row or slot");
  }
  for (std::size_t index = 0; index < rows.size(); ++index) {
    if (source[index] == target[index]) continue;
    const std::size_t first_slot = static_cast<std::size_t>(rows[index]) * buffer.heads * buffer.slots;
    for (std::size_t head = 0; head < buffer.heads; ++head) {
      const auto slot_of = [&](std::int64_t slot) {
        const std::size_t index_of_slot = first_slot + head * buffer.slots + static_cast<std::size_t>(slot);
        return buffer.memory.subspan(index_of_slot * buffer.width, buffer.width);
      };
      std::ranges::copy(slot_of(source[index]), slot_of(target[index]).begin());
    }
  }
}

}  // namespace

void bind_verify(nb::module_& module) {
  module.def(
      "largest_sum",
      [](const Vector<const float>& scores, std::uint64_t noise_key) {
        nb::gil_scoped_release release;
        return largest_sum(as_span(scores), noise_key);
      },
      "scores"_a, "noise_key"_a,
      "Return the token with the largest sum of score and noise, and the sum: NaN where a score is NaN or +inf.");
  module.def(
      "keep_above_border",
      [](const Vector<const float>& scores, const Vector<const float>& probabilities, float most_removed,
         const Vector<float>& kept) {
        if (probabilities.size() != scores.size() || kept.size() != scores.size()) {
          throw std::invalid_argument("give one probability and one kept score for each score");
        }
        NucleusBorder border;
        {
          nb::gil_scoped_release release;
          border = keep_above_border(as_span(scores), as_span(probabilities), most_removed, as_span(kept));
        }
        return std::pair(as_array(std::move(border.tokens)), border.mass);
      },
      "scores"_a, "probabilities"_a, "most_removed"_a, "kept"_a.noconvert(),
      "Copy the scores of tokens that are more probable than those at the border of the nucleus, others become -inf.\n"
      "Return the tokens at the border, which are about equally probable, and the mass of those below it.");
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
