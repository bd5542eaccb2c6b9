// The number of drafted tokens that a batch verifies.
#pragma once

#include <cstddef>
#include <span>

namespace speculant {

/// Return the number of units to add to a pass, best first, that maximises gains - rate * seconds. Every second must
/// earn the long-run rate; otherwise a plain pass would be worth more.
///
/// A unit is a node, or one more token of every row if passes are as wide as the longest row. `gains`: expected tokens
/// of each unit, descending. `seconds[n]`: duration of a pass with n units; one entry more than `gains`. `rate`: tokens
/// per second. Among equally good numbers, return the smallest.
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
