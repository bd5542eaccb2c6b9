// The distribution q of what may follow a context of the graph.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trie.hpp"

namespace speculant {

/// What q is made of.
struct DistributionOptions {
  std::int64_t max_candidates = 0;  // most tokens that it keeps, the most probable, of equals the lowest ids; 0: all
  double temperature = 1.0;         // raises it to the power of 1 / temperature, before it is capped
};

/// Distributions, one after another.
struct Distributions {
  struct Span {
    std::size_t first, last;
    std::size_t size() const { return last - first; }
  };
  std::vector<std::uint32_t> tokens;
  std::vector<float> probabilities;

  std::span<const float> probabilities_of(Span q) const { return std::span(probabilities).subspan(q.first, q.size()); }
  void resize(std::size_t size) { tokens.resize(size), probabilities.resize(size); }
};

/// The entry of a distribution at a quantile.
inline std::size_t draw(std::span<const float> probabilities, double quantile) {
  double cumulative = 0.0;
  for (std::size_t entry = 0; entry < probabilities.size(); ++entry) {
    cumulative += static_cast<double>(probabilities[entry]);
    if (cumulative > quantile) return entry;
  }
  return probabilities.size() - 1;  // rounding may leave the sum below 1: the rest belongs to the last token
}

/// The same among the entries that are left of it, of which there is one.
template <class IsLeft>
std::size_t draw_left(std::span<const float> probabilities, double quantile, IsLeft&& is_left) {
  double left = 0.0, cumulative = 0.0;
  for (std::size_t entry = 0; entry < probabilities.size(); ++entry) {
    if (is_left(entry)) left += static_cast<double>(probabilities[entry]);
  }
  std::size_t drawn = 0;
  for (std::size_t entry = 0; entry < probabilities.size(); ++entry) {
    if (!is_left(entry)) continue;
    cumulative += static_cast<double>(probabilities[entry]);
    drawn = entry;
    if (cumulative > quantile * left) break;
  }
  return drawn;  // rounding may leave the sum too small: the rest belongs to the last one
}

/// What the probabilities of a range of records are proportional to. Keeps its memory from one context to the next.
class Masses {
 public:
  /// Take what followed a context of order 1 to N.
  void read(const Trie& trie, Context context, const DistributionOptions& options);
  /// Most entries that the distribution can have.
  std::size_t max_entries(const DistributionOptions& options) const;
  /// Append the distribution, capped; nothing where the masses make none.
  Distributions::Span append_to(Distributions& out, const DistributionOptions& options);

 private:
  void temper(double temperature);

  const Level* level_ = nullptr;
  std::int64_t low_ = 0;  // record of the first
  std::vector<double> values_;
  double total_ = 0.0;
  std::vector<std::size_t> largest_;
};

/// The context of the same order after a token that followed `context`, or the longest known one.
Context context_after(const Trie& trie, Context context, Token token);

}  // namespace speculant
