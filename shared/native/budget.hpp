// How much of the drafts of a batch is verified.
#pragma once

#include <cstddef>
#include <span>

namespace speculant {

/// How many units to add to a pass, the best first, so that gains - rate * seconds is largest: every second must earn
/// what seconds earn in the long run, or a plain pass would be worth more.
///
/// A unit is a node, or one more token of every row where passes are as wide as the longest row. `gains`: tokens that
/// each unit is expected to bring, descending. `seconds[n]`: of a pass with n units; as many as gains, and one.
/// `rate`: tokens a second. The fewest units of equally good ones.
inline std::size_t best_size(std::span<const double> gains, std::span<const double> seconds, double rate) {
  std::size_t best = 0;
  double gained = 0.0, most = -rate * seconds[0];
  for (std::size_t size = 1; size <= gains.size(); ++size) {
    gained += gains[size - 1];
    const double value = gained - rate * seconds[size];
    if (value > most) most = value, best = size;
  }
  return best;
}

}  // namespace speculant
