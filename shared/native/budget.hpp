// How much of the drafts of a batch is verified.
#pragma once

#include <cstddef>
#include <span>

namespace speculant {

/// The number of units to add to a pass, the best first, that maximises gains - rate * seconds: every second must earn
/// the long-run rate, or a plain pass would be worth more.
///
/// A unit is a node, or one more token of every row if passes are as wide as the longest row. `gains`: expected tokens
/// of each unit, descending. `seconds[n]`: duration of a pass with n units; it has one entry more than gains. `rate`:
/// tokens per second. Among equally good numbers, the smallest.
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
