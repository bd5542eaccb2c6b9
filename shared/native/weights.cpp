#include <algorithm>
#include <cmath>
#include <numeric>

#include "graph_drafter.hpp"

namespace speculant {
namespace {

/// A count, at least 1; it may be 0 in a damaged file.
std::int64_t positive_count(const Level& level, std::int64_t node) {
  return std::max<std::int64_t>(static_cast<std::uint32_t>(level.count(node)), 1);
}

/// The successors of a context, at most as many as there are tokens: a damaged file could name a whole level.
Range bounded_children(const Trie& trie, Context context) {
  const Range range = trie.children(context);
  return {range.low, std::min<std::int64_t>(range.high, range.low + trie.vocabulary_size())};
}

}  // namespace

void Weights::read(const Trie& trie, Context context, const DistributionOptions& options) {
  level_ = &trie.level(context.order + 1);
  const Range children = bounded_children(trie, context);
  low_ = children.low;
  values_.clear();
  for (std::int64_t child = children.low; child < children.high; ++child) {
    values_.push_back(static_cast<double>(positive_count(*level_, child)));
  }
  total_ = std::accumulate(values_.begin(), values_.end(), 0.0);
  if (options.temperature != 1.0) temper(options.temperature);
}

/// Raise weights to the power of 1 / temperature, and scale the largest one to 1.
void Weights::temper(double temperature) {
  total_ = 0.0;
  double largest = 0.0;
  for (double value : values_) largest = std::max(largest, value);
  if (!(largest > 0.0)) return;  // never, unless the file is damaged
  for (double& value : values_) {
    value = std::pow(value / largest, 1.0 / temperature);
    total_ += value;
  }
}

std::size_t Weights::max_entries(const DistributionOptions& options) const {
  const std::size_t size = values_.size();
  return options.max_candidates > 0 ? std::min(size, static_cast<std::size_t>(options.max_candidates)) : size;
}

Distributions::Span Weights::append_to(Distributions& out, const DistributionOptions& options) {
  const std::size_t first = out.tokens.size(), num_kept = max_entries(options);
  std::size_t last_kept = values_.size();  // the smallest of the kept entries
  double threshold = -1.0;
  const auto is_kept = [&](std::size_t index) {
    return values_[index] > threshold || (values_[index] == threshold && index <= last_kept);
  };
  if (num_kept < values_.size()) {
    const auto is_larger = [&](std::size_t left, std::size_t right) {
      return values_[left] > values_[right] || (values_[left] == values_[right] && left < right);
    };
    largest_.resize(num_kept);  // a heap with the smallest in front
    std::iota(largest_.begin(), largest_.end(), std::size_t{0});
    std::make_heap(largest_.begin(), largest_.end(), is_larger);
    for (std::size_t index = num_kept; index < values_.size(); ++index) {
      if (values_[index] <= values_[largest_.front()]) continue;
      std::pop_heap(largest_.begin(), largest_.end(), is_larger);
      largest_.back() = index;
      std::push_heap(largest_.begin(), largest_.end(), is_larger);
    }
    last_kept = largest_.front();
    threshold = values_[last_kept];
    total_ = 0.0;
    for (std::size_t index = 0; index < values_.size(); ++index) {
      if (is_kept(index)) total_ += values_[index];
    }
  }
  if (!(total_ > 0.0)) return {first, first};
  for (std::size_t index = 0; index < values_.size(); ++index) {
    if (!is_kept(index)) continue;
    const auto probability = static_cast<float>(values_[index] / total_);
    if (!(probability > 0.0f)) continue;
    out.tokens.push_back(static_cast<std::uint32_t>(level_->token(low_ + static_cast<std::int64_t>(index))));
    out.probabilities.push_back(probability);
  }
  return {first, out.tokens.size()};
}

}  // namespace speculant
